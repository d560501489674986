# What a machine can have set or lack that namespaces can't imitate: Yama,
# sysctls of the distribution, systemd's own ways to start something, a setuid
# bwrap, and a kernel in which a terminal can still be typed into.
. packaging/box/lib.sh
echo "# $(version)"
install_lnk
run() { as lnk sandbox run --internet-host x.test -- "$@"; }

for scope in 0 1 2; do
  sysctl -qw kernel.yama.ptrace_scope=$scope
  expect "Yama $scope" 0 "in a sandbox" run echo in a sandbox
done
expect "doctor" 0 "ready: " as lnk doctor
expect "systemd-run, a service of the system's" 0 "in a sandbox" systemd-run --quiet --wait --pipe -p User=scout -p WorkingDirectory=/home/scout lnk sandbox run -- echo in a sandbox
expect "systemd-run, hardened" 0 "in a sandbox" systemd-run --quiet --wait --pipe -p User=scout -p WorkingDirectory=/home/scout -p NoNewPrivileges=yes -p ProtectSystem=strict -p PrivateTmp=yes \
  -p ProtectHome=read-only -p ProtectControlGroups=yes -p LockPersonality=yes lnk sandbox run --internet-host x.test -- echo in a sandbox
expect "systemd-run, without namespaces" 125 "user namespace" systemd-run --quiet --wait --pipe -p User=scout -p WorkingDirectory=/home/scout -p RestrictNamespaces=yes lnk sandbox run -- true
expect "from cron: no terminal, an empty environment" 0 "in a sandbox" sh -c 'cd /home/scout && exec setsid -w setpriv --reuid scout --regid scout --clear-groups env -i /usr/bin/lnk sandbox run -- echo in a sandbox </dev/null'
expect "nohup" 0 "in a sandbox" as nohup lnk sandbox run -- echo in a sandbox
expect "by root" 0 "in a sandbox" lnk sandbox run --internet-host x.test -- echo in a sandbox

# TIOCSTI types on the terminal that it is asked on, where the kernel still does that.
cat >/home/scout/type.py <<'P'
import fcntl, sys, termios
for request in (termios.TIOCSTI, termios.TIOCSTI | 1 << 32):
    try:
        for c in b"echo typed\n": fcntl.ioctl(0, request, bytes([c]))
        print("typed", request)
    except OSError as e:
        print(e.strerror)
P
expect "nothing is typed into the terminal" 0 "Operation not permitted" as script -qec 'lnk sandbox run --read type.py -- python3 type.py' /dev/null
expect "not with a high bit set" 1 "" sh -c 'cd /home/scout; setpriv --reuid scout --regid scout --clear-groups script -qec "lnk sandbox run --read type.py -- python3 type.py" /dev/null | grep typed'

chmod u+s /usr/bin/bwrap
if bwrap --version >/dev/null 2>&1 && as bwrap --ro-bind / / true 2>/dev/null; then
  expect "a setuid bwrap: doctor" 0 "plain" as lnk doctor
  expect "a setuid bwrap" 0 "in a sandbox 0000000000000000" run sh -c 'echo in a sandbox $(grep CapEff /proc/self/status | cut -f2)'
  sysctl -qw user.max_user_namespaces=0
  expect "a setuid bwrap, and no user namespaces" 125 "user namespace" run true
else # from 0.11 on
  expect "a setuid bwrap" 125 "chmod u-s /usr/bin/bwrap" run true
  expect "a setuid bwrap: doctor" 1 "chmod u-s /usr/bin/bwrap" as lnk doctor
fi
sysctl -qw user.max_user_namespaces=0
chmod u-s /usr/bin/bwrap
expect "no user namespaces" 125 "user.max_user_namespaces" run true
expect "no user namespaces: doctor" 1 "missing: " as lnk doctor
sysctl -qw user.max_user_namespaces=10000
sysctl -qw kernel.unprivileged_userns_clone=0 2>/dev/null && expect "none without privilege" 125 "kernel.unprivileged_userns_clone" run true
sysctl -qw kernel.unprivileged_userns_clone=1 2>/dev/null
expect "and again with them" 0 "in a sandbox" run echo in a sandbox
sysctl -qw kernel.yama.ptrace_scope=3
expect "Yama 3" 0 "in a sandbox" run echo in a sandbox
exit $failed
