package integration

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"link.internal/lnk/integration/testnet"
)

// unproxied leaves a script no proxy variable.
const unproxied = "unset HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy NO_PROXY no_proxy NODE_USE_ENV_PROXY\n"

// theClient is where the machine has the tests' client.
const theClient = testnet.BinDir + "/client"

// client runs a script that has the tests' client as "client".
func client(t *testing.T, flags []string, script string) result {
	t.Helper()
	return sandbox(t, append([]string{"--read", theClient}, flags...), "client() { "+theClient+` "$@"; }`+"\n"+script)
}

// echo makes a host that sends back what it gets, on some ports.
func echo(t *testing.T, name string, ports ...uint16) (addr netip.Addr, origins []*testnet.Origin) {
	t.Helper()
	addr = internet.Host(name)
	for _, port := range ports {
		o := internet.Echo(addr, port)
		t.Cleanup(o.Close)
		origins = append(origins, o)
	}
	return addr, origins
}

// talkTo is a line of Python that sends a word to host:port and prints what
// comes back, or how it failed.
const talkTo = `
import socket, sys
def talk_to(host, port, word=b"hello"):
    try:
        s = socket.create_connection((host, port), 10)
        s.sendall(word); s.shutdown(socket.SHUT_WR)
        d = b""
        while True:
            b = s.recv(100)
            if not b: break
            d += b
        print(d.decode() or "closed")
    except OSError as e: print("ConnectionResetError" if e.errno in (32, 104, 107) else type(e).__name__) # in whichever call it shows
`

func py(body string) string { return "/usr/bin/python3 - <<'P'\n" + talkTo + body + "\nP" }

// DNS1, DN4: the sandbox's nameserver is its own, whatever the machine's
// resolv.conf is.
func TestDNS1DN4_ResolvConf(t *testing.T) {
	needsFull(t)
	site(t, "ok.test")
	const script = `cat /etc/resolv.conf; ` + unproxied + `curl -sS http://ok.test/`
	const want = "nameserver 127.0.0.1\nhello from ok.test\n"
	sandbox(t, okFlags, script).exits(0).prints(want)
	sandbox(t, append(okFlags, "--read", "/etc"), script).exits(0).prints(want)
	sandbox(t, nil, "cat /etc/resolv.conf").exits(0).prints("nameserver 127.0.0.1\n")
	stub := "mkdir -p /run/systemd/resolve; printf 'nameserver 45.80.255.53\\nsearch corp.test\\noptions edns0 trust-ad\\n' >/run/systemd/resolve/stub-resolv.conf\n" +
		"d=$(mktemp -d /mnt/XXXXXX); mkdir $d/up $d/work; mount -t overlay -o lowerdir=/etc,upperdir=$d/up,workdir=$d/work x /etc; chmod 755 /etc; rm -f /etc/resolv.conf\n"
	run := testnet.Lnk + " sandbox run --internet-host ok.test -- sh -c '" + script + "'"
	changed(t, stub+"ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf", run).exits(0).prints(want)
	for _, preparation := range []string{"ln -s /run/nowhere/resolv.conf /etc/resolv.conf", ":"} {
		// There is nobody to ask, but the sandbox has its own.
		changed(t, stub+preparation, testnet.Lnk+" sandbox run --internet-host ok.test -- sh -c 'cat /etc/resolv.conf; getent ahostsv4 ok.test | head -1 | cut -d. -f1'").
			exits(0).prints("nameserver 127.0.0.1\n127\n")
	}
}

// DNS2, NET2, HT7: an endpoint is reached by its name, on an address of its
// own, on privileged ports too; the program can serve the same port itself.
func TestDNS2NET2HT7_Endpoints(t *testing.T) {
	needsFull(t)
	echo(t, "db.test", 5432, 22, 6379, 8443)
	echo(t, "other.test", 5432)
	_, inner := echo(t, "x.wild.test", 27017, 2222)
	flags := []string{
		"--internet-host", "db.test", "--internet-host", "other.test", "--internet-host", "*.wild.test",
		"--tcp", "db.test:5432", "--tcp", "db.test:22", "--tcp", "other.test:5432", "--tcp", "*.wild.test:27017",
	}
	sandbox(t, flags, py(`
own = socket.socket(); own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); own.bind(("127.0.0.1", 5432)); own.listen()
own2 = socket.socket(); own2.bind(("127.0.0.1", 27017)); own2.listen()
talk_to("db.test", 5432); talk_to("DB.Test.", 22); talk_to("other.test", 5432); talk_to("x.wild.test", 27017)
talk_to("db.test", 8443); talk_to("x.wild.test", 2222); talk_to("other.test", 22); talk_to("wild.test", 27017)
a = {n: socket.gethostbyname(n) for n in ("db.test", "other.test", "x.wild.test", "y.wild.test")}
print(len(set(a.values())), all(v.startswith("127.") and v != "127.0.0.1" for v in a.values()))
print(sorted(x[4][0].split(".")[0] for x in socket.getaddrinfo("db.test", 5432, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)))
print(socket.gethostbyaddr(a["db.test"])[0])`)).exits(0).prints(
		"hello\nhello\nhello\nhello\nConnectionRefusedError\nConnectionRefusedError\nConnectionRefusedError\ngaierror\n4 True\n['127']\ndb.test\n")
	if n := inner[1].Accepted(); n != 0 {
		t.Errorf("a port that isn't listed was reached %d times", n)
	}
	// HT7: by name as through the proxy; an unlisted host's endpoint is no flag at all.
	sandbox(t, []string{"--tcp", "db.test:5432"}, "true").refusedInOneLine("--tcp db.test:5432", "--internet-host db.test")
	// An address alone is no name's, and leads nowhere.
	sandbox(t, flags, py(`
for a in ("127.0.0.9", "127.64.3.3", "127.200.1.1"):
    for p in (5432, 443, 80): talk_to(a, p)`)).exits(0).prints("ConnectionRefusedError\nConnectionResetError\nConnectionResetError\n" +
		"ConnectionRefusedError\nConnectionResetError\nConnectionResetError\n" + "ConnectionRefusedError\nConnectionResetError\nConnectionResetError\n")
}

// DNS2: an endpoint whose port the program has taken for all addresses is told of.
func TestDNS2_PortTakenInside(t *testing.T) {
	needsFull(t)
	echo(t, "x.wild.test", 7000)
	sandbox(t, []string{"--internet-host", "*.wild.test", "--tcp", "*.wild.test:7000"}, py(`
own = socket.socket(); own.bind(("0.0.0.0", 7000)); own.listen()
talk_to("x.wild.test", 7000)
own.close()
talk_to("x.wild.test", 7000)`)).exits(0).prints("gaierror\nhello\n").says("x.wild.test", "can't be reached by its name inside", "address already in use")
}

// DNS2: many endpoints, more than one message asks for.
func TestDNS2_ManyEndpoints(t *testing.T) {
	needsFull(t)
	echo(t, "many.test", 7000, 7499)
	flags := []string{"--internet-host", "many.test"}
	for port := 7000; port < 7500; port++ {
		flags = append(flags, "--tcp", fmt.Sprintf("many.test:%d", port))
	}
	sandbox(t, flags, py(`talk_to("many.test", 7000); talk_to("many.test", 7499)`)).exits(0).prints("hello\nhello\n")
	flags = []string{"--internet-host", "many.test"}
	for port := 1; port < 1100; port++ {
		flags = append(flags, "--tcp", fmt.Sprintf("many.test:%d", port))
	}
	sandbox(t, flags, "true").refusedInOneLine("--tcp", "1024")
}

// DNS3, DN1, DN5: what isn't listed is answered here, and nothing leaves.
func TestDNS3DN1DN5_Unlisted(t *testing.T) {
	needsFull(t)
	site(t, "ok.test")
	internet.DNS.Set("secret.evil.test", internet.Address())
	before := len(internet.DNS.Asked())
	r := client(t, okFlags, `
for net in udp tcp; do for type in A AAAA TXT ANY MX SRV CNAME HTTPS NS SOA DS; do client dns $net 0 secret.evil.test. $type; done; done
client dns udp 1232 sEcReT.eViL.TeSt. A; client dns udp 0 localhost. A; client dns udp 0 1.1.1.1. A
client dns udp 0 169.254.169.254. A; client dns udp 0 metadata.google.internal. A; client dns udp 0 com. A; client dns udp 0 . NS
client dns udp 0 1.0.0.127.in-addr.arpa. PTR; client dns udp 0 1.1.168.192.in-addr.arpa. PTR; client dns udp 0 'ok\.test.' A; client dns udp 0 _x.evil.test. TXT
client dns udp 1232 OK.tEsT. AAAA; client dns tcp 0 ok.test. NS`).exits(0)
	want := strings.Repeat("NXDOMAIN tc=false edns=false name=secret.evil.test. records=0\n", 22) +
		"NXDOMAIN tc=false edns=true name=sEcReT.eViL.TeSt. records=0\n" +
		"NOERROR tc=false edns=false name=localhost. records=1\n60 IN A 127.0.0.1\n" +
		"NXDOMAIN tc=false edns=false name=1.1.1.1. records=0\nNXDOMAIN tc=false edns=false name=169.254.169.254. records=0\n" +
		"NXDOMAIN tc=false edns=false name=metadata.google.internal. records=0\nNXDOMAIN tc=false edns=false name=com. records=0\nNOERROR tc=false edns=false name=. records=0\n" +
		"NOERROR tc=false edns=false name=1.0.0.127.in-addr.arpa. records=1\n60 IN PTR localhost.\nNXDOMAIN tc=false edns=false name=1.1.168.192.in-addr.arpa. records=0\n" +
		`NXDOMAIN tc=false edns=false name=ok\.test. records=0` + "\nNXDOMAIN tc=false edns=false name=_x.evil.test. records=0\n" +
		"NOERROR tc=false edns=true name=OK.tEsT. records=0\nNOERROR tc=false edns=false name=ok.test. records=0\n"
	r.prints(want).says("lnk sandbox: refused secret.evil.test: add it to [internet] allow (--internet-host secret.evil.test)")
	if n := strings.Count(r.stderr, "refused secret.evil.test:"); n != 1 {
		t.Errorf("told %d times:\n%s", n, r.stderr)
	}
	if asked := internet.DNS.Asked()[before:]; len(asked) > 0 {
		t.Errorf("asked outside: %q", asked)
	}
	// At once, with libc's resolver as with Go's.
	r = sandbox(t, okFlags, unproxied+`curl -sS --max-time 20 https://no.test/; getent hosts no.test`)
	if r.took > 3*time.Second {
		t.Errorf("it took %v", r.took)
	}
}

// DNS3, DN1: the libraries that resolve names: glibc with AI_ADDRCONFIG,
// musl, busybox, Go's own, Node's both.
func TestDNS3DN1_Resolvers(t *testing.T) {
	needsFull(t)
	echo(t, "db.test", 5432)
	site(t, "ok.test")
	flags := []string{"--internet-host", "db.test", "--tcp", "db.test:5432", "--internet-host", "ok.test", "--env", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"}
	t.Run("Go", func(t *testing.T) {
		client(t, flags, unproxied+"client get http://ok.test/; client get https://ok.test/; client get https://no.test/").exits(1).
			prints("hello from ok.test\nhello from ok.test\nerror: Get \"https://no.test/\": dial tcp: lookup no.test on 127.0.0.1:53: no such host\n")
	})
	t.Run("musl", func(t *testing.T) {
		gcc, err := exec.LookPath("musl-gcc")
		if err != nil {
			t.Skip("musl-gcc is missing")
		}
		program := "/srv/musl-client"
		build := exec.Command(gcc, "-static", "-o", program, "testdata/resolve.c")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		sandbox(t, append(flags, "--read", program), program+" db.test 5432; "+program+" db.test 5432 addrconfig; "+program+" no.test 1").exits(1).prints("hello\nhello\nno address\n")
	})
	t.Run("busybox", func(t *testing.T) {
		busybox, err := exec.LookPath("busybox")
		if err != nil {
			t.Skip("busybox is missing")
		}
		sandbox(t, flags, unproxied+busybox+" wget -q -O - http://ok.test/; "+busybox+" nslookup db.test | grep -c '^Name:.*db.test'").exits(0).prints("hello from ok.test\n1\n")
	})
	t.Run("node", func(t *testing.T) {
		node, err := exec.LookPath("node")
		if err != nil {
			t.Skip("node is missing")
		}
		sandbox(t, append(flags, "--env", "NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt"), unproxied+node+` -e "
const dns = require('dns'), net = require('net'), https = require('https');
(async () => {
  console.log((await dns.promises.resolve4('db.test'))[0].split('.')[0], (await dns.promises.lookup('db.test')).address.split('.')[0]);
  await dns.promises.resolve4('no.test').catch((e) => console.log(e.code));
  await new Promise((ok) => { const s = net.connect(5432, 'db.test', () => s.write('hello')); s.on('data', (d) => { console.log(String(d)); s.destroy(); ok(); }); });
  await new Promise((ok) => https.get('https://ok.test/', (r) => { r.on('data', (d) => process.stdout.write(d)); r.on('end', ok); }));
})()"`).exits(0).prints("127 127\nENOTFOUND\nhello\nhello from ok.test\n")
	})
}

// DNS5, CL1, CL6, NET9: a listed host by its name, without a proxy's
// variable: the same decision, the same judgement of the server's name.
func TestDNS5CL1_WithoutVariables(t *testing.T) {
	needsFull(t)
	plain, secure := site(t, "ok.test")
	other, otherSecure := site(t, "no.test")
	site(t, "a.wild.test")
	flags := append(okFlags, "--internet-host", "*.wild.test")
	sandbox(t, flags, unproxied+`curl -sS http://ok.test/; curl -sS https://ok.test/; wget -q -O - http://ok.test/; wget -q -O - https://a.wild.test/; curl -sS http://wild.test/`).exits(6).
		prints("hello from ok.test\nhello from ok.test\nhello from ok.test\nhello from a.wild.test\n").says("refused wild.test: add it")
	repository := gitRepository(t)
	server := internet.TLS(internet.Host("git.test"), 443, gitBackend(repository))
	defer server.Close()
	sandbox(t, []string{"--internet-host", "git.test"}, unproxied+`cd /tmp && git clone -q https://git.test/repo.git && cat repo/file`).exits(0).prints("content\n")
	log := filepath.Join(testnet.Home, "names.wire")
	defer os.Remove(log)
	// Another site's name on a listed host's address; no TLS at all; other ports.
	r := sandbox(t, append(flags, "--wire", log), unproxied+`
		ok=$(getent ahostsv4 ok.test | head -1 | cut -d' ' -f1)
		curl -sSk --max-time 5 --resolve no.test:443:$ok https://no.test/ >/dev/null 2>&1; echo $?
		curl -sS --max-time 5 http://ok.test:443/ >/dev/null 2>&1; echo $?
		curl -sS --max-time 5 http://ok.test:8080/ >/dev/null 2>&1; echo $?
		curl -sS --max-time 5 https://ok.test/ >/dev/null; echo $?`).exits(0).says("refused ok.test:443", "names another server, no.test")
	if !strings.HasSuffix(r.stdout, "\n7\n0\n") || strings.HasPrefix(r.stdout, "0") {
		t.Errorf("curl: %q", r.stdout)
	}
	var calls []string
	for _, record := range wireLog(t, log) {
		calls = append(calls, fmt.Sprintf("%s %s %s:%d %s %s", record.From, record.Method, record.Host, record.Port, record.Verdict, record.Reason))
	}
	want := []string{"sandbox TCP ok.test:443 refused sni", "sandbox TCP ok.test:443 refused sni", "sandbox TCP ok.test:443 open ", "sandbox TCP ok.test:443 end "}
	if !slices.Equal(calls, want) {
		t.Errorf("the wire has %q", calls)
	}
	if other.Accepted()+otherSecure.Accepted() != 0 || plain.Accepted() == 0 || secure.Accepted() == 0 {
		t.Error("the wrong origins were reached")
	}
	// Turned off: as the proxy's variables alone, and endpoints by name.
	echo(t, "db.test", 5432)
	sandbox(t, append(flags, "--names=false", "--internet-host", "db.test", "--tcp", "db.test:5432"), `curl -sS http://ok.test/; `+unproxied+`curl -sS http://ok.test/; `+py(`talk_to("db.test", 5432); talk_to("127.0.0.1", 443)`)).
		exits(0).prints("hello from ok.test\nhello\nConnectionRefusedError\n")
	sandbox(t, []string{"--names=maybe"}, "true").exits(125)
	sandbox(t, []string{"--names=false"}, "true").refusedInOneLine("--names", "--internet-host")
}

// DNS5: endpoints on 443 and 80, whose server name isn't judged.
func TestDNS5_EndpointOn443(t *testing.T) {
	needsFull(t)
	echo(t, "db.test", 443, 80)
	for _, more := range []string{"", "--names=false"} {
		flags := []string{"--internet-host", "db.test", "--tcp", "db.test:443", "--tcp", "db.test:80"}
		if more != "" {
			flags = append(flags, more)
		}
		sandbox(t, flags, py(`talk_to("db.test", 443); talk_to("db.test", 80)`)).exits(0).prints("hello\nhello\n")
	}
}

// DNS5, LAN1: names of the local network.
func TestDNS5_LAN(t *testing.T) {
	needsFull(t)
	gateway := netip.MustParseAddr("10.77.0.1")
	nas := internet.HTTP(gateway, 80, nil)
	defer nas.Close()
	files := internet.Echo(gateway, 5000)
	defer files.Close()
	internet.DNS.Set("nas.local", gateway)
	internet.DNS.Set("inside.test", gateway)
	sandbox(t, []string{"--lan-host", "nas.local", "--tcp", "nas.local:5000"}, unproxied+"curl -sS http://nas.local/; "+py(`talk_to("nas.local", 5000)`)).exits(0).prints("hello from nas.local\nhello\n")
	// An internet's name that leads into the network leads nowhere.
	sandbox(t, []string{"--internet-host", "inside.test", "--lan-host", "*"}, unproxied+"curl -sS --max-time 5 http://inside.test/ || echo failed").exits(0).prints("failed\n").says("refused inside.test:80", "local network")
	if nas.Accepted() != 1 {
		t.Errorf("reached %d times", nas.Accepted())
	}
}

// DNS5: what goes wrong behind a name is an error at once, and the person is told.
func TestDNS5_Failures(t *testing.T) {
	needsFull(t)
	internet.Host("refusing.test") // where nothing listens
	sandbox(t, []string{"--internet-host", "*.test"}, unproxied+"curl -sS --max-time 10 http://refusing.test/; curl -sS --max-time 10 http://absent.test/ || echo failed").exits(0).prints("failed\n").
		says("refused refusing.test:80", "refused").says("refused absent.test:80", "no such host")
	site(t, "ok.test")
	sandbox(t, append(okFlags, "--per-minute", "2"), unproxied+"for i in 1 2 3; do curl -s -o /dev/null -w '%{http_code} ' http://ok.test/; done").says("refused ok.test:80", "--per-minute").prints("200 200 000 ")
}

// DNS3, DN2, DN3: records of listed names, as this machine's resolver has them.
func TestDNS3DN2DN3_Records(t *testing.T) {
	needsFull(t)
	big := "big.db.test. 300 IN TXT"
	for i := range 12 {
		big += fmt.Sprintf(` "%d-%s"`, i, strings.Repeat("x", 248))
	}
	internet.DNS.SetRecords("big.db.test", big)
	internet.DNS.SetRecords("_mongodb._tcp.cluster.db.test", "_mongodb._tcp.cluster.db.test. 60 IN SRV 0 0 27017 a.db.test.", "_mongodb._tcp.cluster.db.test. 60 IN SRV 0 0 27017 b.db.test.",
		"_mongodb._tcp.cluster.db.test. 60 IN SRV 0 0 27017 out.evil.test.")
	internet.DNS.SetRecords("cluster.db.test", `cluster.db.test. 60 IN TXT "replicaSet=rs0"`, "cluster.db.test. 60 IN MX 10 mail.evil.test.",
		`cluster.db.test. 60 IN HTTPS 1 . alpn=h3,h2 port=443 ipv4hint=45.80.1.1 ipv6hint=2a0a::1 ech=AEX+DQBBAAAgACB6QvXYGPZJrKeVyY0yLgkCvoeUm14vZM3JhcqjiHQAAAAEAAEAAQASY2xvdWRmbGFyZS1lY2guY29tAAA=`,
		`cluster.db.test. 60 IN HTTPS 2 out.evil.test. alpn=h2`, `cluster.db.test. 60 IN HTTPS 0 a.db.test.`, `cluster.db.test. 60 IN HTTPS 5 cluster.db.test. alpn=h2`, `cluster.db.test. 60 IN HTTPS 3 a.db.test. alpn=h3`, `cluster.db.test. 60 IN HTTPS 4 . mandatory=ech ech=AEX+DQBBAAAgACB6QvXYGPZJrKeVyY0yLgkCvoeUm14vZM3JhcqjiHQAAAAEAAEAAQASY2xvdWRmbGFyZS1lY2guY29tAAA=`)
	internet.DNS.SetRecords("alias.db.test", "alias.db.test. 60 IN CNAME cluster.db.test.")
	internet.DNS.Handle("alias.db.test", dns.TypeTXT, func(w dns.ResponseWriter, request *dns.Msg) {
		reply := new(dns.Msg).SetReply(request)
		for _, line := range []string{"alias.db.test. 60 IN CNAME cluster.db.test.", `cluster.db.test. 60 IN TXT "by alias"`, `other.test. 60 IN TXT "a stranger's"`, "alias.db.test. 60 IN A 10.0.0.1"} {
			rr, _ := dns.NewRR(line)
			reply.Answer = append(reply.Answer, rr)
		}
		w.WriteMsg(reply)
	})
	echo(t, "a.db.test", 27017)
	echo(t, "b.db.test", 27017)
	_, outside := echo(t, "out.evil.test", 27017)
	flags := []string{"--internet-host", "*.db.test", "--tcp", "*.db.test:27017"}
	client(t, flags, `
client dns udp 0 big.db.test. TXT | head -1; client dns udp 512 big.db.test. TXT | head -1; client dns udp 1232 big.db.test. TXT | head -1
client dns udp 4096 big.db.test. TXT | head -1; client dns udp 65535 big.db.test. TXT | head -1; client dns tcp 0 big.db.test. TXT | wc -c
client dns udp 1232 _mongodb._tcp.cluster.db.test. SRV; client dns udp 1232 cluster.db.test. TXT; client dns udp 0 cluster.db.test. MX; client dns udp 1232 CLUSTER.db.test. HTTPS
client dns udp 0 alias.db.test. CNAME; client dns udp 0 alias.db.test. TXT; client dns udp 0 none.db.test. TXT; client dns udp 0 _none._tcp.db.db.test. SRV; client dns udp 0 alias.db.test. PTR
`+py(`talk_to("a.db.test", 27017); talk_to("b.db.test", 27017); talk_to("out.evil.test", 27017)`)).exits(0).prints(
		"NOERROR tc=true edns=false name=big.db.test. records=0\nNOERROR tc=true edns=true name=big.db.test. records=0\nNOERROR tc=true edns=true name=big.db.test. records=0\n" +
			"NOERROR tc=false edns=true name=big.db.test. records=1\nNOERROR tc=false edns=true name=big.db.test. records=1\n3105\n" +
			"NOERROR tc=false edns=true name=_mongodb._tcp.cluster.db.test. records=3\n60 IN SRV 0 0 27017 a.db.test.\n60 IN SRV 0 0 27017 b.db.test.\n60 IN SRV 0 0 27017 out.evil.test.\n" +
			"NOERROR tc=false edns=true name=cluster.db.test. records=1\n60 IN TXT \"replicaSet=rs0\"\n" +
			"NOERROR tc=false edns=false name=cluster.db.test. records=1\n60 IN MX 10 mail.evil.test.\n" +
			"NOERROR tc=false edns=true name=CLUSTER.db.test. records=2\n60 IN HTTPS 1 . alpn=\"h2\" port=\"443\"\n60 IN HTTPS 5 cluster.db.test. alpn=\"h2\"\n" +
			"NOERROR tc=false edns=false name=alias.db.test. records=1\n60 IN CNAME cluster.db.test.\n" +
			"NOERROR tc=false edns=false name=alias.db.test. records=1\n60 IN TXT \"by alias\"\n" +
			"NOERROR tc=false edns=false name=none.db.test. records=0\nNOERROR tc=false edns=false name=_none._tcp.db.db.test. records=0\nNOERROR tc=false edns=false name=alias.db.test. records=0\n" +
			"hello\nhello\ngaierror\n")
	if outside[0].Accepted() != 0 {
		t.Error("a target outside was reached")
	}
}

// UP5: under an HTTP upstream no name is looked up here, and only endpoints
// have addresses.
func TestUP5_Names(t *testing.T) {
	needsFull(t)
	addr := internet.Address()
	db := internet.Echo(addr, 5432)
	defer db.Close()
	l, port := listenMachine(t)
	log := &upstreamLog{}
	go acceptEach(l, func(conn net.Conn) {
		buf := make([]byte, 1000)
		n, _ := conn.Read(buf)
		log.add(strings.SplitN(string(buf[:n]), " HTTP", 2)[0])
		passOn(conn, netip.AddrPortFrom(addr, 5432), "HTTP/1.1 200 OK\r\n\r\n")
	})
	internet.DNS.SetRecords("db.far.test", `db.far.test. 60 IN TXT "x"`)
	before := len(internet.DNS.Asked())
	flags := []string{"--internet-host", "*", "--lan-host", "*", "--lan-host", "nas.local", "--tcp", "db.far.test:5432", "--tcp", "*.wild.test:5432", "--upstream", "http://127.0.0.1:" + port}
	client(t, flags, py(`talk_to("db.far.test", 5432); talk_to("a.wild.test", 5432); talk_to("127.0.0.1", 443)`)+`
for n in web.far.test nas.local printer.lan; do client dns udp 0 $n. A; done
client dns udp 0 db.far.test. TXT; client dns udp 0 _x._tcp.far.test. SRV; client dns udp 0 far.test. HTTPS
`+unproxied+"getent hosts web.far.test").exits(2).prints("hello\nhello\nConnectionRefusedError\n" +
		"NOERROR tc=false edns=false name=web.far.test. records=0\nNOERROR tc=false edns=false name=nas.local. records=0\nNOERROR tc=false edns=false name=printer.lan. records=0\n" +
		"NOERROR tc=false edns=false name=db.far.test. records=0\nNOERROR tc=false edns=false name=_x._tcp.far.test. records=0\nNOERROR tc=false edns=false name=far.test. records=0\n")
	if got := log.all(); !slices.Equal(got, []string{"CONNECT db.far.test:5432", "CONNECT a.wild.test:5432"}) {
		t.Errorf("the upstream was asked for %q", got)
	}
	if asked := internet.DNS.Asked()[before:]; len(asked) > 0 {
		t.Errorf("looked up here: %q", asked)
	}
}

// BLANK4: --dns of a proxy that runs by itself: endpoints have addresses of
// this machine's loopback.
func TestBLANK4_DNS(t *testing.T) {
	echo(t, "db.test", 5432)
	site(t, "ok.test")
	l, port := listenMachine(t)
	l.Close()
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--listen", port, "--dns", "127.0.0.1:5353", "--internet-host", "*.test", "--tcp", "db.test:5432", "--tcp", "*.wild.test:5433"))
	ask := func(name string) (int, []dns.RR) {
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		reply, err := dns.Exchange(m, "127.0.0.1:5353")
		if err != nil {
			return -1, nil
		}
		tcp := &dns.Client{Net: "tcp"}
		if other, _, err := tcp.Exchange(m, "127.0.0.1:5353"); err != nil || len(other.Answer) != len(reply.Answer) {
			t.Errorf("over TCP: %v, %v", other, err)
		}
		return reply.Rcode, reply.Answer
	}
	eventually(t, "it answers", func() bool { code, _ := ask("x.test."); return code >= 0 })
	echo(t, "x.wild.test", 5433)
	for name, port := range map[string]int{"db.test.": 5432, "x.wild.test.": 5433} {
		code, answer := ask(name)
		if code != 0 || len(answer) != 1 {
			t.Fatalf("%s: %d %v", name, code, answer)
		}
		conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", answer[0].(*dns.A).A, port), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(conn, "hi")
		if n, err := io.ReadFull(conn, make([]byte, 2)); n != 2 {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
	}
	if code, answer := ask("ok.test."); code != 0 || len(answer) != 0 {
		t.Errorf("ok.test: %d %v", code, answer)
	}
	if code, _ := ask("no.other."); code != dns.RcodeNameError {
		t.Errorf("no.other: %d", code)
	}
	run.signal(15)
	run.wait().exits(0)
	for _, bad := range []string{"0.0.0.0:53", "10.77.0.2:5353", "127.0.0.1", "127.0.0.1:0", "x", "[::]:5353", "127.0.0.1:99999"} {
		finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--listen", port, "--dns", bad, "--internet-host", "*")).exits(125).says("flag -dns", "loopback")
	}
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--listen", port, "--dns", "127.0.0.1:53", "--internet-host", "*")).exits(125).says("--dns 127.0.0.1:53", "permission denied")
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--listen", port, "--dns", "127.0.0.1:5353", "--internet-host", "*", "--tcp", "db.test:22")).exits(125).says("db.test", "permission denied")
	finish(t, testnet.Command(testnet.Lnk, "sandbox", "proxy", "--dns", "127.0.0.1:5353")).exits(125).says("--dir FOLDER or --listen PORT")
}
