package integration

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// posture is what a process may do, as the kernel tells it.
type posture struct {
	// uids are real, effective, saved and file-system; groups the supplementary ones.
	uids, groups string
	// caps are CapInh, CapPrm, CapEff, CapBnd and CapAmb, on every thread.
	caps       string
	noNewPrivs string
	seccomp    string
	// core is RLIMIT_CORE's hard limit.
	core string
	// environ is who owns /proc/PID/environ: root where the process is not
	// dumpable. In a user namespace root is that namespace's, so it tells
	// nothing of the relay.
	environ string
	// own are the namespaces that are not the machine's.
	own string
	// fds are the kinds of its descriptors, sorted, each kind once.
	fds string
}

const (
	netBindService = "0000000000000400"
	none           = "0000000000000000"
)

// declared is the table: change it with the code, and say why.
var declared = map[string]posture{
	// Outside the sandbox, it holds the rules and later the keys.
	"link-sandbox-proxy": {
		uids: "20001 20001 20001 20001", groups: "", caps: none + " " + none + " " + none + " full " + none,
		noNewPrivs: "1", seccomp: "2", core: "0", environ: "root", own: "",
		fds: "/dev/null eventfd eventpoll folder pipe socket",
	},
	// Process 1 inside: it makes listeners on ports under 1024 and nothing else.
	"lnk-relay": {
		uids: "20001 20001 20001 20001", groups: "",
		caps:       none + " " + netBindService + " " + netBindService + " relay " + none,
		noNewPrivs: "1", seccomp: "2", core: "unlimited", environ: "user", own: "cgroup ipc mnt net pid user uts",
		fds: "/dev/null eventfd eventpoll pipe socket",
	},
	// The program: nothing.
	"program": {
		uids: "20001 20001 20001 20001", groups: "", caps: none + " " + none + " " + none + " " + none + " " + none,
		noNewPrivs: "1", seccomp: "2", core: "unlimited", environ: "user", own: "cgroup ipc mnt net pid user uts",
		fds: "pipe",
	},
}

// plainRelay is the relay's where it has no capability: nothing at all, and
// it is not dumpable.
var plainRelay = posture{
	uids: "20001 20001 20001 20001", groups: "", caps: none + " " + none + " " + none + " " + none + " " + none,
	noNewPrivs: "1", seccomp: "2", core: "unlimited", environ: "root", own: "cgroup ipc mnt net pid user uts",
	fds: "/dev/null eventfd eventpoll pipe socket",
}

// The posture of the proxy, the relay and the program is the declared one.
func TestPosture(t *testing.T) {
	site(t, "ok.test")
	run := start(t, testnet.Command(testnet.Lnk, "sandbox", "run", "--internet-host", "ok.test", "--", "sh", "-c", "curl -sS http://ok.test/; exec sleep 987"))
	run.until("hello")
	found := map[string]string{}
	eventually(t, "all three run", func() bool {
		for _, p := range processes() {
			pid, command, _ := strings.Cut(p, " ")
			switch {
			case strings.Contains(command, "link-sandbox-proxy"):
				found["link-sandbox-proxy"] = pid
			case strings.HasPrefix(command, "/run/lnk/lnk-relay"):
				found["lnk-relay"] = pid
			case strings.HasPrefix(command, "sleep 987"):
				found["program"] = pid
			}
		}
		return len(found) == 3
	})
	for _, name := range slices.Sorted(maps.Keys(declared)) {
		want := declared[name]
		if name == "lnk-relay" && testnet.Plain() {
			want = plainRelay
		}
		if got := postureOf(t, found[name]); got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	// The program's user namespace is not the relay's.
	if !testnet.Plain() && ns(found["program"], "user") == ns(found["lnk-relay"], "user") {
		t.Error("the program is in the relay's user namespace")
	}
}

func ns(pid, name string) string {
	link, _ := os.Readlink("/proc/" + pid + "/ns/" + name)
	return link
}

func postureOf(t *testing.T, pid string) posture {
	t.Helper()
	var p posture
	tasks, err := filepath.Glob("/proc/" + pid + "/task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no process %s", pid)
	}
	for i, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		status := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			status[key] = strings.Join(strings.Fields(value), " ")
		}
		bounding := status["CapBnd"]
		switch bounding {
		case "000001ffffffffff", "000001fffeffffff":
			bounding = "full"
		case none:
		default:
			bounding = "relay"
		}
		caps := strings.Join([]string{status["CapInh"], status["CapPrm"], status["CapEff"], bounding, status["CapAmb"]}, " ")
		if i > 0 && (caps != p.caps || status["NoNewPrivs"] != p.noNewPrivs || status["Seccomp"] != p.seccomp) {
			t.Errorf("threads of %s differ: %s, %s", pid, caps, p.caps)
		}
		p.uids, p.groups, p.caps = status["Uid"], status["Groups"], caps
		p.noNewPrivs, p.seccomp = status["NoNewPrivs"], status["Seccomp"]
	}
	limits, _ := os.ReadFile("/proc/" + pid + "/limits")
	for line := range strings.Lines(string(limits)) {
		if strings.HasPrefix(line, "Max core file size") {
			p.core = strings.Fields(line)[5]
		}
	}
	info, err := os.Stat("/proc/" + pid + "/environ")
	if err != nil {
		t.Fatal(err)
	}
	p.environ = map[int]string{0: "root", testnet.UID: "user"}[ownerOf(info)]
	var own []string
	for _, name := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		if ns(pid, name) != ns("self", name) {
			own = append(own, name)
		}
	}
	p.own = strings.Join(own, " ")
	kinds := map[string]bool{}
	fds, _ := os.ReadDir("/proc/" + pid + "/fd")
	for _, fd := range fds {
		target, _ := os.Readlink("/proc/" + pid + "/fd/" + fd.Name())
		kind, _, _ := strings.Cut(target, ":")
		if kind == "anon_inode" {
			kind = strings.Trim(strings.TrimPrefix(target, "anon_inode:"), "[]")
		}
		if strings.Contains(kind, "lnk-run-") {
			kind = "folder"
		}
		kinds[kind] = true
	}
	p.fds = strings.Join(slices.Sorted(maps.Keys(kinds)), " ")
	return p
}
