# The list of programs on an older kernel, and in the plain wall of AppArmor.
. packaging/box/lib.sh
echo "# $(version)"
install_lnk
gcc -O2 -pthread -o /usr/local/bin/racer integration/testdata/racer.c
loader=$(ls /lib64/ld-linux*.so.* /lib/ld-linux*.so.* 2>/dev/null | head -1)
mkdir -p /home/scout/w && chown scout: /home/scout/w

listed() {
  expect "$1: listed" 0 "runs" as lnk sandbox run --command sh -- sh -c 'echo runs'
  expect "$1: not listed" 126 "refused /usr/bin/id: add it to [commands] allow" as lnk sandbox run --command sh -- sh -c /usr/bin/id
  expect "$1: by the loader" 126 "it starts any program" as lnk sandbox run --command sh -- sh -c "$loader /usr/bin/id"
  expect "$1: a copy" 126 "refused /home/scout/w/id" as lnk sandbox run --write w --command sh --command cp -- sh -c 'cp /usr/bin/id w/id; exec w/id'
  expect "$1: a memfd" 1 "Error" as lnk sandbox run --command python3 -- python3 -c 'import os
fd = os.memfd_create("x"); os.write(fd, open("/usr/bin/id", "rb").read()); os.execve("/proc/self/fd/%d" % fd, ["id"], {})'
  expect "$1: raced 500 times" 0 "0 wins" as lnk sandbox run --write w --command racer --command true -- racer /home/scout/w /usr/bin/true /usr/bin/id "$loader" 500
  rm -rf /home/scout/w/*
  expect "$1: renames across folders" 0 "x" as lnk sandbox run --write w --command sh --command mkdir --command mv --command cat -- sh -c 'cd w; mkdir -p a b; echo x >a/f; mv a/f b/g; cat b/g'
  rm -rf /home/scout/w/*
  expect "$1: learn" 0 '"/usr/bin/id",' as lnk sandbox learn -- sh -c 'id >/dev/null'
  expect "$1: git" 0 "git version" as lnk sandbox run --command git -- git version
}

for scope in 0 1 2; do
  sysctl -qw kernel.yama.ptrace_scope=$scope
  listed "Yama $scope"
done
sysctl -qw kernel.yama.ptrace_scope=1
restrict=/usr/share/apparmor/extra-profiles/bwrap-userns-restrict
if [ -e "$restrict" ]; then
  cp "$restrict" /etc/apparmor.d/ && apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict
  listed "the plain wall"
  cp packaging/apparmor/lnk /etc/apparmor.d/lnk && apparmor_parser -r /etc/apparmor.d/lnk
  listed "under lnk's own profiles"
fi
sysctl -qw kernel.yama.ptrace_scope=3
expect "Yama 3 is refused" 125 "ptrace_scope below 3" as lnk sandbox run --command true -- true
exit $failed
