package bind

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// NormalPath is the normal form of a path (RFC 3986, section 6.2.2): percent
// encodings of unreserved characters are decoded and others in upper case, so
// that %2F stays one and separates nothing, and what a path can't have is
// percent-encoded; then dot segments are taken out.
// Empty segments stay, and match no prefix.
func NormalPath(escaped string) (string, error) {
	if !strings.HasPrefix(escaped, "/") {
		return "", errors.New("a path begins with /")
	}
	var b strings.Builder
	for i := 0; i < len(escaped); i++ {
		c := escaped[i]
		if c != '%' {
			if c == '/' || isPathByte(c) {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "%%%02X", c)
			}
			continue
		}
		if i+2 >= len(escaped) || !isHex(escaped[i+1]) || !isHex(escaped[i+2]) {
			return "", errors.New("a percent encoding is none")
		}
		if decoded := unhex(escaped[i+1])<<4 | unhex(escaped[i+2]); isUnreserved(decoded) {
			b.WriteByte(decoded)
		} else {
			b.WriteString(strings.ToUpper(escaped[i : i+3]))
		}
		i += 2
	}
	segments := strings.Split(b.String(), "/")[1:]
	kept := segments[:0]
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".", "..":
			if s == ".." && len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
			if last {
				kept = append(kept, "")
			}
		default:
			kept = append(kept, s)
		}
	}
	return "/" + strings.Join(kept, "/"), nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	default:
		return c - 'a' + 10
	}
}

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// isPathByte reports whether a path has a byte as itself (RFC 3986, pchar).
func isPathByte(c byte) bool { return isUnreserved(c) || strings.IndexByte("!$&'()*+,;=:@", c) >= 0 }

// checkPrefix wants a prefix in its normal form, of segments that aren't empty.
func checkPrefix(prefix string) error {
	got, err := NormalPath(prefix)
	switch {
	case err != nil:
		return fmt.Errorf("the prefix %.100q: %w", prefix, err)
	case got != prefix || path.Clean(prefix) != prefix || prefix == "/":
		return fmt.Errorf("the prefix %.100q is not in its normal form, such as /model or /tools/search", prefix)
	}
	return nil
}
