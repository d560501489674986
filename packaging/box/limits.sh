# Limits of memory, processes and processors, by a scope of systemd's.
. packaging/box/lib.sh
echo "# $(version)"
install_lnk
run() { as env DBUS_SESSION_BUS_ADDRESS="unix:path=$runtime/bus" lnk sandbox run "$@"; }
mkdir -p /etc/systemd/system/user@.service.d
printf '[Service]\nDelegate=memory pids cpu\n' >/etc/systemd/system/user@.service.d/delegate.conf
systemctl daemon-reload
systemctl restart "user@$(id -u scout).service"
for n in 1 2 3 4 5 6 7 8 9 10; do [ -S "$runtime/bus" ] && break; sleep 0.5; done

hungry='import sys
blocks = []
for i in range(40): blocks.append(bytearray(b"x") * (8 << 20))
print("had 320 MiB")'
expect "no limit" 0 "had 320 MiB" run --command python3 -- python3 -c "$hungry"
expect "memory: within it" 0 "fine" run --memory 256M -- echo fine
expect "memory: over it" 137 "" run --memory 128M -- python3 -c "$hungry"
forks='import os
n = 0
try:
    while n < 300:
        if os.fork() == 0: os.execvp("sleep", ["sleep", "20"])
        n += 1
except OSError: pass
print("many" if n > 100 else "few")'
expect "processes: no limit" 0 "many" run -- python3 -c "$forks"
expect "processes: over it" 0 "few" run --processes 40 -- python3 -c "$forks"
spin='import os, time
t = time.time(); c = time.process_time()
while time.time() - t < 4: pass
print("throttled" if time.process_time() - c < 2.5 else "free")'
expect "processors: no limit" 0 "free" run -- python3 -c "$spin"
expect "processors: a quarter" 0 "throttled" run --cpus 0.25 -- python3 -c "$spin"
expect "with a proxy, and a list" 0 "403" run --memory 256M --processes 100 --internet-host x.test --command curl -- curl -s -o /dev/null -w '%{http_code}' http://y.test/
expect "nothing is left" 1 "" sh -c 'systemctl --user -M scout@ list-units --type=scope 2>/dev/null | grep run-; pgrep -u scout bwrap'
expect "by root, of the system's manager" 0 "few" lnk sandbox run --processes 40 -- python3 -c "$forks"
expect "no manager to ask" 125 "leave --memory" as env -u XDG_RUNTIME_DIR lnk sandbox run --memory 256M -- true
printf '[Service]\nDelegate=no\nDelegate=pids\n' >/etc/systemd/system/user@.service.d/delegate.conf
systemctl daemon-reload
systemctl restart "user@$(id -u scout).service"
for n in 1 2 3 4 5 6 7 8 9 10; do [ -S "$runtime/bus" ] && break; sleep 0.5; done
expect "what isn't delegated is refused" 125 "isn't delegated" run --cpus 0.5 -- true
exit $failed
