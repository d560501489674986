package wall

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// etcFolders are the folders of /etc that programs can't do without. The rest
// of /etc stays outside: it holds other programs' settings, some with tokens
// in files that all users read.
var etcFolders = []string{
	"alternatives",               // what /usr/bin/java and kin lead to
	"ssl/certs", "pki/tls/certs", // CA certificates (Debian, Fedora)
	"pki/ca-trust", "ca-certificates/extracted", // Fedora, Arch
	"crypto-policies", // Fedora: which ciphers libraries use
	"fonts",
	"java-8-openjdk", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "java-25-openjdk", "java",
}

// etcFiles are copied into the sandbox where they exist: a copy costs a
// tenth of a mount. Links are made again as links.
var etcFiles = []string{
	"ld.so.cache", "localtime", "timezone", "locale.conf",
	"os-release", "lsb-release", "debian_version", "redhat-release", "fedora-release",
	"ssl/openssl.cnf", "ssl/cert.pem", "pki/tls/openssl.cnf", "pki/tls/cert.pem",
	"mime.types", "protocols", "services", "ssh/ssh_known_hosts",
	"bash.bashrc", "profile", "inputrc",
}

const hostsPath = "/etc/hosts"

// HostsGranted reports whether the hosts file is one that a person granted, in
// place of the sandbox's own.
func (w *Wall) HostsGranted() bool { return w.mounts.byDest[hostsPath].kind != made }

// endpoints are the lines of the hosts file by which endpoints have their
// names where there is no DNS.
func (w *Wall) endpoints() string {
	var lines strings.Builder
	for _, h := range w.grants.Hosts {
		fmt.Fprintf(&lines, "%s\t%s\n", h.Addr, h.Name)
	}
	return lines.String()
}

func (w *Wall) etc() {
	for _, name := range etcFolders {
		path := "/etc/" + name
		info, err := os.Lstat(path)
		switch {
		case err != nil:
		case info.IsDir():
			w.mounts.add(mount{kind: readOnly, dest: path, source: path})
		case info.Mode()&os.ModeSymlink != 0:
			if target, err := os.Readlink(path); err == nil {
				w.mounts.add(mount{kind: link, dest: path, source: target})
			}
		}
	}
	for _, name := range etcFiles {
		path := "/etc/" + name
		if target, err := os.Readlink(path); err == nil {
			w.etcLink(path, target)
			continue
		}
		w.copyFile(path)
	}
	user, group := w.grants.User, w.grants.Group
	for path, text := range map[string]string{
		"/etc/passwd": passwd(user, group, w.grants.Home),
		"/etc/group":  groups(group),
		hostsPath:     "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		// Its own nameserver, whatever the machine has, and no search list: a
		// name that is asked for is the name that is decided on.
		"/etc/resolv.conf":    "nameserver 127.0.0.1\n",
		"/etc/ssh/ssh_config": sshConfig(w.grants.Network),
		"/etc/nsswitch.conf":  "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
	} {
		w.mounts.add(mount{kind: made, dest: path, source: text})
	}
	if w.grants.HostNetwork {
		// The machine's own names.
		for _, path := range []string{"/etc/resolv.conf", hostsPath} {
			delete(w.mounts.byDest, path)
			w.copyFile(path)
		}
	}
}

// sshConfig is ssh's configuration for all hosts. The machine's own isn't
// used: it includes files whose owner, root, is nobody inside, which ssh
// takes for tampering (ssh_config(5), Include).
func sshConfig(network bool) string {
	text := "# lnk sandbox: what a ~/.ssh/config says comes first.\n"
	if network {
		text += "Host localhost " + hostname + " ip6-localhost ip6-loopback 127.* ::1\n\tProxyCommand none\n" +
			"Host *\n\tProxyCommand " + RelayPath + " connect %h %p\n"
	}
	return text
}

// etcLink makes a link again. One that leads out of what the sandbox has, as
// localtime may, is replaced by what it leads to.
func (w *Wall) etcLink(path, target string) {
	absolute := target
	if !filepath.IsAbs(absolute) {
		absolute = filepath.Join(filepath.Dir(path), target)
	}
	if within(absolute, "/usr") || within(absolute, "/etc") {
		w.mounts.add(mount{kind: link, dest: path, source: target})
		return
	}
	w.copyFile(path)
}

// copyFile has bwrap copy a file of the machine's. One that the caller can't
// read is not for the sandbox either.
func (w *Wall) copyFile(path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && unix.Access(path, unix.R_OK) == nil {
		w.mounts.add(mount{kind: copied, dest: path, source: path})
	}
}

// hostname is the sandbox's. The machine's own is nobody's business inside.
const hostname = "sandbox"

// nobody is what ids that the sandbox doesn't map look like inside.
const nobody = 65534

func passwd(user, group Identity, home string) string {
	var text strings.Builder
	if user.ID != 0 {
		text.WriteString("root:x:0:0:root:/root:/usr/sbin/nologin\n")
	}
	fmt.Fprintf(&text, "%s:x:%d:%d::%s:/bin/sh\n", user.Name, user.ID, group.ID, home)
	if user.ID != nobody {
		text.WriteString("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
	}
	return text.String()
}

func groups(group Identity) string {
	text := ""
	if group.ID != 0 {
		text = "root:x:0:\n"
	}
	text += group.Name + ":x:" + strconv.Itoa(group.ID) + ":\n"
	if group.ID != nobody {
		text += "nogroup:x:65534:\n"
	}
	return text
}
