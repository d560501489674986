package integration

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// inInternet starts a server program in the internet, ended with the test.
func inInternet(t *testing.T, uid int, args ...string) *running {
	t.Helper()
	if uid != 0 {
		args = append([]string{"/usr/bin/setpriv", "--reuid", fmt.Sprint(uid), "--regid", fmt.Sprint(uid), "--clear-groups"}, args...)
	}
	var run *running
	internet.In(func() { run = start(t, exec.Command(args[0], args[1:]...)) })
	return run
}

// installed finds a server program, which is in nobody's PATH.
func installed(t *testing.T, patterns ...string) string {
	t.Helper()
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Skipf("%s is missing", patterns[0])
	return ""
}

// listening waits until a server of the internet accepts connections.
func listening(t *testing.T, addr netip.Addr, port int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s:%d accepts", addr, port), func() bool {
		return exec.Command("/bin/bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", addr, port)).Run() == nil
	})
}

// DNS2: psql against a real PostgreSQL, by its name.
func TestDNS2_PostgreSQL(t *testing.T) {
	postgres := installed(t, "/usr/lib/postgresql/*/bin/postgres")
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("psql is missing")
	}
	data, err := os.MkdirTemp("", "postgres-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(data)
	os.Chown(data, testnet.Stranger, testnet.Stranger)
	initdb := exec.Command("/usr/bin/setpriv", "--reuid", fmt.Sprint(testnet.Stranger), "--clear-groups", filepath.Join(filepath.Dir(postgres), "initdb"), "-D", data+"/db", "-A", "trust", "-N", "--no-instructions", "-U", "postgres")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	hba := data + "/db/pg_hba.conf"
	if err := os.WriteFile(hba, []byte("host all all all trust\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	addr := internet.Host("db.example.test")
	inInternet(t, testnet.Stranger, postgres, "-D", data+"/db", "-h", addr.String(), "-k", data, "-F")
	listening(t, addr, 5432)
	flags := []string{"--internet-host", "db.example.test", "--tcp", "db.example.test:5432"}
	eventually(t, "PostgreSQL answers", func() bool {
		return sandbox(t, flags, psql+" 'host=db.example.test user=postgres connect_timeout=5' -Atc 'select 1+1'").stdout == "2\n"
	})
	sandbox(t, flags, psql+" 'host=db.example.test user=postgres' -Atc \"select repeat('x', 100000)\" | wc -c; "+psql+" 'host=db.other.test user=postgres' -Atc 'select 1' 2>&1 | grep -c 'could not translate'").
		exits(0).prints("100001\n1\n")
}

// DNS2: redis-cli against a real Redis.
func TestDNS2_Redis(t *testing.T) {
	server := installed(t, "/usr/bin/redis-server")
	addr := internet.Host("redis.test")
	inInternet(t, testnet.Stranger, server, "--bind", addr.String(), "--port", "6379", "--save", "", "--protected-mode", "no", "--dir", "/")
	listening(t, addr, 6379)
	sandbox(t, []string{"--internet-host", "redis.test", "--tcp", "redis.test:6379"},
		"redis-cli -h redis.test set k v; redis-cli -h redis.test get k").exits(0).prints("OK\nv\n")
}

// sshServer starts a real sshd on port 22 of a host, whose one user is the
// machine's, and returns a folder with a key for it.
func sshServer(t *testing.T, name string) (keys string) {
	t.Helper()
	sshd := installed(t, "/usr/sbin/sshd")
	keys = userFolder(t, "keys-"+name)
	keygen := func(path string) {
		os.Remove(path)
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	server, err := os.MkdirTemp("/srv", "sshd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(server); os.RemoveAll(keys) })
	os.Chmod(server, 0o755)
	keygen(server + "/host")
	keygen(keys + "/id_ed25519")
	public, err := os.ReadFile(keys + "/id_ed25519.pub")
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.ReadFile(server + "/host.pub")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		keys + "/known_hosts": name + " " + string(host), server + "/authorized": string(public),
		server + "/config": "UsePAM no\nStrictModes no\nPidFile none\nAuthorizedKeysFile " + server + "/authorized\nHostKey " + server + "/host\nSubsystem sftp internal-sftp\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	os.Chown(keys+"/id_ed25519", testnet.UID, testnet.UID)
	os.MkdirAll("/run/sshd", 0o755)
	addr := internet.Host(name)
	run := inInternet(t, 0, sshd, "-D", "-e", "-f", server+"/config", "-o", "ListenAddress="+addr.String())
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(run.stderr.String())
		}
	})
	listening(t, addr, 22)
	return keys
}

// DNS2, DNS4, CL6: ssh and git over ssh, with the sandbox's own key.
func TestDNS4CL6_SSH(t *testing.T) {
	keys := sshServer(t, "git.test")
	repository := userFolder(t, "ssh-repository")
	defer os.RemoveAll(repository)
	if out, err := exec.Command("cp", "-r", gitRepository(t)+"/repo.git", repository).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	exec.Command("chown", "-R", fmt.Sprintf("%d:%d", testnet.UID, testnet.UID), repository).Run()
	setup := "mkdir -p ~/.ssh && cp " + keys + "/id_ed25519 " + keys + "/known_hosts ~/.ssh/ && chmod 600 ~/.ssh/*\n"
	flags := byProxy("--internet-host", "git.test", "--tcp", "git.test:22", "--read", keys, "--write", userFolder(t, "sshwork"))
	remote := testnet.User + "@git.test:" + repository + "/repo.git"
	sandbox(t, flags, setup+"ssh "+testnet.User+"@git.test echo by proxy; echo to standard input | ssh "+testnet.User+"@git.test cat").
		exits(0).prints("by proxy\nto standard input\n")
	if !testnet.Plain() {
		sandbox(t, flags, setup+"ssh -o ProxyCommand=none "+testnet.User+"@git.test echo by name").exits(0).prints("by name\n")
	}
	sandbox(t, flags, setup+"cd ~/sshwork && rm -rf repo && git clone -q "+remote+` && cd repo && git fetch -q && echo more >more && git add more &&
		git -c user.name=t -c user.email=t@ok.test commit -qm two && git push -q origin HEAD:over-ssh && cat file && seq 200000 | ssh `+testnet.User+`@git.test 'wc -l'`).exits(0).prints("content\n200000\n")
	if out, err := exec.Command("git", "-C", repository+"/repo.git", "-c", "safe.directory=*", "rev-parse", "over-ssh").CombinedOutput(); err != nil {
		t.Errorf("the push didn't arrive: %s", out)
	}
	// Not listed: the reason is said, by lnk and inside.
	r := sandbox(t, []string{"--internet-host", "git.test", "--read", keys}, setup+"ssh "+testnet.User+"@git.test true 2>&1 | head -1")
	r.says("refused git.test:22: its port 22 isn't open")
	if !strings.HasPrefix(r.stdout, "lnk-relay: refused git.test:22: its port 22 isn't open") {
		t.Errorf("inside: %s", r.stdout)
	}
}

// DNS4: lnk-relay connect, as a program's ProxyCommand.
func TestDNS4_Connect(t *testing.T) {
	addr, _ := echo(t, "echo.test", 7)
	flags := byProxy("--internet-host", "echo.test", "--internet-host", addr.String(), "--tcp", "echo.test:7", "--tcp", addr.String()+":7")
	sandbox(t, flags, fmt.Sprintf(`relay=/run/lnk/lnk-relay
		echo one | $relay connect echo.test:7; echo two | $relay connect echo.test 7; echo three | $relay connect %s 7
		head -c 3000000 /dev/zero | $relay connect echo.test:7 | wc -c
		$relay connect no.test:7 </dev/null; echo $?; $relay connect 127.0.0.1:22 </dev/null; echo $?
		$relay connect; echo $?; $relay connect 'a b' 1 2>&1 | grep -c usage; $relay 2>&1 | grep -c 'started by lnk'`, addr)).exits(0).
		prints("one\ntwo\nthree\n3000000\n1\n1\n125\n1\n1\n").says("lnk-relay: refused no.test:7: add it to [internet] allow").says("lnk-relay: refused 127.0.0.1:22: it is this machine")
	sandbox(t, nil, "/run/lnk/lnk-relay connect a.test:1").exits(1).says("lnk-relay:", "the sandbox has no proxy")
}

// CL5: what the machine has in /etc/ssh doesn't break ssh inside.
func TestCL5_SSHConfiguration(t *testing.T) {
	mess := "d=$(mktemp -d /mnt/XXXXXX); mkdir $d/up $d/work; mount -t overlay -o lowerdir=/etc,upperdir=$d/up,workdir=$d/work x /etc; chmod 755 /etc\n" +
		"mkdir -p /etc/ssh/ssh_config.d; echo 'Include /etc/ssh/ssh_config.d/*.conf' >/etc/ssh/ssh_config; echo 'Port 2200' >/etc/ssh/ssh_config.d/10-root.conf; ln -sf /usr/lib/systemd/ssh_config.d/x.conf /etc/ssh/ssh_config.d/20-link.conf\n"
	for _, flags := range []string{"--internet-host ok.test", "", "--read /etc --internet-host ok.test", "--read /etc", "--read /etc/ssh", "--read / --internet-host ok.test"} {
		r := changed(t, mess, testnet.Lnk+" sandbox run "+flags+" -- ssh -G somewhere.test").exits(0)
		proxied := strings.Contains(r.stdout, "\nproxycommand /run/lnk/lnk-relay connect %h %p\n")
		if strings.Contains(r.stderr, "owner") || !strings.Contains(r.stdout, "\nport 22\n") || proxied != strings.Contains(flags, "internet") {
			t.Errorf("%s: %s\n%s", flags, r.stderr, r.stdout)
		}
		r = changed(t, mess, testnet.Lnk+" sandbox run "+flags+" -- ssh -G localhost").exits(0)
		if strings.Contains(r.stdout, "proxycommand /run") {
			t.Errorf("%s: %s", flags, r.stdout)
		}
	}
}

// DN3: a MongoDB driver's look-ups, up to the connection.
func TestDN3_MongoDBDriver(t *testing.T) {
	needsFull(t)
	const modules = ".node/node_modules" // from this folder, whatever its path is here
	if _, err := os.Stat(modules + "/mongodb"); err != nil {
		t.Skip("npm's mongodb is missing: integration/install.sh")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is missing")
	}
	copied := userFolder(t, "mongo")
	defer os.RemoveAll(copied)
	if out, err := exec.Command("cp", "-r", modules, copied+"/").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	internet.DNS.SetRecords("_mongodb._tcp.c.abc.test", "_mongodb._tcp.c.abc.test. 60 IN SRV 0 0 27017 c-0.abc.test.", "_mongodb._tcp.c.abc.test. 60 IN SRV 0 0 27017 c-1.abc.test.")
	internet.DNS.SetRecords("c.abc.test", `c.abc.test. 60 IN TXT "authSource=admin&replicaSet=rs0"`)
	_, zero := echo(t, "c-0.abc.test", 27017)
	_, one := echo(t, "c-1.abc.test", 27017)
	userFile(t, "mongo/app.js", `
const { MongoClient } = require('mongodb');
const client = new MongoClient('mongodb+srv://c.abc.test/?tls=false', { serverSelectionTimeoutMS: 1500 });
client.connect().catch((e) => console.log(client.options.replicaSet, client.options.hosts.map(String).sort().join(' '), e.name));
setTimeout(() => process.exit(0), 2500);`, 0o644)
	sandbox(t, []string{"--internet-host", "*.abc.test", "--tcp", "*.abc.test:27017", "--read", copied}, "cd ~/mongo && "+node+" app.js").exits(0).
		prints("rs0 c-0.abc.test:27017 c-1.abc.test:27017 MongoServerSelectionError\n")
	if zero[0].Accepted() == 0 || one[0].Accepted() == 0 {
		t.Errorf("the replicas were connected to %d and %d times", zero[0].Accepted(), one[0].Accepted())
	}
}
