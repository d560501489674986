package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"testing"
)

// npmRegistry is a registry with one package, tiny.
func npmRegistry(t *testing.T) http.Handler {
	t.Helper()
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	files := tar.NewWriter(zip)
	for name, text := range map[string]string{
		"package/package.json": `{"name":"tiny","version":"1.0.0","main":"index.js"}`, "package/index.js": `module.exports = "works"`,
	} {
		files.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		files.Write([]byte(text))
	}
	files.Close()
	zip.Close()
	sum := sha512.Sum512(archive.Bytes())
	mux := http.NewServeMux()
	mux.HandleFunc("/tiny", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"name":"tiny","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny","version":"1.0.0","dist":{"tarball":"http://registry.test/tiny.tgz","integrity":"sha512-%s"}}}}`,
			base64.StdEncoding.EncodeToString(sum[:]))
	})
	mux.HandleFunc("/tiny.tgz", func(w http.ResponseWriter, _ *http.Request) { w.Write(archive.Bytes()) })
	return mux
}

// echConfig is an ECHConfigList (RFC 9849, section 4) with a key of X25519
// that nobody holds, and the public name "ok.test".
var echConfig = func() []byte {
	key := bytes.Repeat([]byte{9}, 32)
	contents := append([]byte{7, 0, 0x20, 0, 32}, key...)           // config_id, DHKEM(X25519), public key
	contents = append(contents, 0, 4, 0, 1, 0, 1)                   // HKDF-SHA256, AES-128-GCM
	contents = append(contents, 32)                                 // maximum_name_length
	contents = append(contents, append([]byte{7}, "ok.test"...)...) // public_name
	contents = append(contents, 0, 0)                               // no extensions
	config := append([]byte{0xfe, 0x0d, byte(len(contents) >> 8), byte(len(contents))}, contents...)
	return append([]byte{byte(len(config) >> 8), byte(len(config))}, config...)
}()
