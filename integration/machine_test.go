package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"link.internal/lnk/integration/testnet"
)

// changed runs a script as the ordinary user, after root has run a
// preparation, in a mount namespace of their own.
func changed(t *testing.T, preparation, script string) result {
	t.Helper()
	cmd := exec.Command("/usr/bin/unshare", "--mount", "/bin/sh", "-ec",
		preparation+fmt.Sprintf("\nexec /usr/bin/setpriv --reuid %[1]d --regid %[1]d --clear-groups /bin/sh -c \"$SCRIPT\"", testnet.UID))
	cmd.Env = append(testnet.Environment(), "SCRIPT="+script)
	cmd.Dir = testnet.Home
	return finish(t, cmd)
}

// RUN7: a missing piece is one clear line, exit code 125, and no weaker run;
// lnk doctor says the same.
func TestRUN7_MissingPieces(t *testing.T) {
	for _, test := range []struct {
		name, preparation, script string
		want                      []string
	}{
		{
			"no bubblewrap", `d=$(mktemp -d /mnt/XXXXXX); mkdir $d/up $d/work; mount -t overlay -o lowerdir=/usr/bin,upperdir=$d/up,workdir=$d/work x /usr/bin; chmod 755 /usr/bin; rm /usr/bin/bwrap`, "",
			[]string{"bubblewrap is missing", "apt install bubblewrap"},
		},
		{
			"bubblewrap not executable", `cp /usr/bin/true /mnt/x; chmod 644 /mnt/x; mount --bind /mnt/x /usr/bin/bwrap`, "",
			[]string{"/usr/bin/bwrap", "can't be executed"},
		},
		{
			"no user namespaces", "", `unshare --user --map-root-user sh -c 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"' sh `,
			[]string{"user namespace", "max_user_namespaces"},
		},
		{
			"inside a sandbox", "", testnet.Lnk + ` sandbox run --read ` + testnet.BinDir + ` -- `,
			[]string{"user namespace", "max_user_namespaces"},
		},
		{
			"no relay", `mkdir -p /mnt/lone; cp ` + testnet.Lnk + ` /mnt/lone; mount --bind /mnt/lone ` + testnet.BinDir, "",
			[]string{"lnk-relay", "install lnk whole"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed(t, test.preparation, test.script+testnet.Lnk+" sandbox run --internet-host ok.test -- touch /tmp/started").refusedInOneLine(test.want...)
			r := changed(t, test.preparation, test.script+testnet.Lnk+" doctor").exits(1)
			for _, want := range test.want {
				if !strings.Contains(r.stdout, want) || !strings.HasPrefix(r.stdout, "missing: ") {
					t.Errorf("doctor says %q, not %q", r.stdout, want)
				}
			}
		})
	}
	r := lnk(t, "doctor").exits(0)
	if strings.Count(r.stdout, "\n") != 1 || !strings.HasPrefix(r.stdout, "ready: bubblewrap ") {
		t.Errorf("doctor says %q", r.stdout)
	}
}
