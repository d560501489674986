# The two walls: the full one as the machine is; the plain one where AppArmor's
# bwrap-userns-restrict is loaded; and the full one again under lnk's own profiles.
. packaging/box/lib.sh
echo "# $(version)"
install_lnk

# What holds in both walls.
held() {
  expect "$1: the program's uid, without a capability" 0 "$(id -u scout) 0000000000000000" as lnk sandbox run --internet-host x.test -- sh -c 'echo $(id -u) $(grep CapEff /proc/self/status | cut -f2)'
  expect "$1: no user namespace" 1 "Operation not permitted" as lnk sandbox run -- unshare --user true
  expect "$1: no mount" 32 "" as lnk sandbox run -- mount -t tmpfs x /tmp
  expect "$1: process 1 is closed" 1 "ermission denied" as lnk sandbox run -- cat /proc/1/environ
  expect "$1: process 1 can't be traced" 1 "Operation not permitted" as lnk sandbox run -- strace -p 1
  expect "$1: process 1 can't be killed" 0 "still here" as lnk sandbox run -- sh -c 'for s in KILL TERM QUIT SEGV STOP; do kill -$s 1; done 2>/dev/null; sleep 0.2; echo still here'
  expect "$1: its own processes can be traced" 0 "exited with 0" as lnk sandbox run -- strace -e trace=none true
  expect "$1: refused by the proxy" 0 "403" as lnk sandbox run --internet-host x.test -- curl -s -o /dev/null -w '%{http_code}' http://y.test/
  expect "$1: the home is empty" 0 "none" as lnk sandbox run -- sh -c 'ls -A ~; echo none'
  expect "$1: a folder to write" 0 "" as sh -c 'mkdir -p w && lnk sandbox run --write w -- touch w/made && test -e w/made && rm -r w'
  expect "$1: nothing else to write" 1 "Read-only file system" as lnk sandbox run -- touch /usr/made
  expect "$1: no listener of the machine's" 0 "refused" as sh -c 'python3 -m http.server 8001 --bind 127.0.0.1 >/dev/null 2>&1 & sleep 1.5; lnk sandbox run --internet-host x.test -- sh -c "curl -s --max-time 5 http://127.0.0.1:8001/ >/dev/null || echo refused"; kill $!'
  expect "$1: another port of it through the proxy" 0 "403" as lnk sandbox run --internet-host x.test -- curl -s -o /dev/null -w '%{http_code}' --noproxy '' -x http://127.0.0.1:40781 http://127.0.0.1:22/
  expect "$1: by root too" 0 "0 0000000000000000" lnk sandbox run --internet-host x.test -- sh -c 'echo $(id -u) $(grep CapEff /proc/self/status | cut -f2)'
}

full() {
  expect "$1: doctor" 0 "full" as lnk doctor
  expect "$1: DNS inside" 0 "127.64.0.1" as lnk sandbox run --internet-host x.test -- getent hosts x.test
  expect "$1: a port under 1024 by name" 0 "127.64.0.1" as lnk sandbox run --internet-host x.test --tcp x.test:22 -- getent hosts x.test
  held "$1"
}

full "the machine as it is"
restrict=/usr/share/apparmor/extra-profiles/bwrap-userns-restrict
if [ -e "$restrict" ]; then
  cp "$restrict" /etc/apparmor.d/ && apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict
  plain="under bwrap-userns-restrict"
  expect "$plain: doctor" 0 "plain" as lnk doctor
  expect "$plain: doctor says what to do" 0 "/etc/apparmor.d/lnk" as lnk doctor
  expect "$plain: no DNS" 2 "" as lnk sandbox run --internet-host x.test -- getent hosts x.test
  expect "$plain: an endpoint's name" 0 "127.64.0.1" as lnk sandbox run --internet-host x.test --tcp x.test:5432 -- getent hosts x.test
  expect "$plain: a port under 1024 is refused" 125 "lnk doctor says what to do" as lnk sandbox run --internet-host x.test --tcp x.test:22 -- true
  expect "$plain: a wildcard's endpoint is refused" 125 "lnk doctor says what to do" as lnk sandbox run --internet-host '*.x.test' --tcp '*.x.test:5432' -- true
  expect "$plain: both through the proxy alone" 0 "" as lnk sandbox run --internet-host '*.x.test' --tcp '*.x.test:22' --names=false -- true
  held "$plain"
  cp packaging/apparmor/lnk /etc/apparmor.d/lnk && apparmor_parser -r /etc/apparmor.d/lnk
  full "with lnk's own profiles"
  expect "with lnk's own profiles: the program is held by one" 0 "lnk-bwrap//&lnk-program (enforce)" as lnk sandbox run -- cat /proc/self/attr/current
  expect "with lnk's own profiles: others are still restricted" 1 "" as bwrap --unshare-all --ro-bind / / --cap-add ALL --uid 0 -- python3 -c 'import socket; socket.socket().bind(("127.0.0.1", 1))'
fi
exit $failed
