#!/bin/sh
# The packages on a real box: install, slots, bind, traffic, restart, upgrade with
# a bound agent, reboot, remove, reinstall, purge. Run as root, twice on one disk:
# the second time is behind a reboot. It needs deb-1/ and deb-2/, two versions.
set -u
. packaging/box/lib.sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
echo "# $(version)"

# check NAME WANTED GOT
slots=${SLOTS:-20}

check() {
	if [ "$2" = "$3" ]; then echo "ok    $1"; else
		echo "FAIL  $1: \"$3\" and not \"$2\""
		failed=1
	fi
}

state() { lnk box status --json | python3 -c 'import json, sys; print(" ".join("%d:%s" % (s["number"], s["state"]) for s in json.load(sys.stdin)))'; }
uids() { lnk box status --json | python3 -c 'import json, sys; print([(s["agent"], s["proxy"], s["group"]) for s in json.load(sys.stdin)])'; }
proxy_pid() { pgrep -U "$(id -u lnk-proxy-"$1")" -f link-sandbox-proxy; }
settle() {
	for _ in $(seq 120); do
		if lnk box status >/dev/null 2>&1 && ! lnk box status | grep -qE 'starting|ending|waiting'; then return; fi
		sleep 1
	done
	lnk box status
	lnk box logs 1
}
# What the harness of a slot makes of a script.
obey() { printf '%s' "$2" | setpriv --reuid "$(id -u lnk-agent-"$1")" --regid "$(id -u lnk-agent-"$1")" --clear-groups lnk sandbox bridge "unix:/run/lnk/slots/$1/net/in.sock:3000" --stdio; }
internet() {
	ip netns add origin
	ip link add veth0 type veth peer name eth0 netns origin
	ip addr add 10.9.9.1/24 dev veth0
	ip link set veth0 up
	ip -n origin addr add 10.9.9.2/24 dev eth0
	ip -n origin link set eth0 up
	ip -n origin link set lo up
	mkdir -p /tmp/www && echo "from the origin" >/tmp/www/index.html
	(cd /tmp/www && ip netns exec origin python3 -m http.server 8000 >/dev/null 2>&1 &)
	sleep 3
}
GET='curl -s -m 20 http://10.9.9.2:8000/ | tail -1'

if [ ! -e /var/lib/lnk/slots.json ]; then
	dpkg -i deb-1/*.deb >/tmp/dpkg.log 2>&1
	check "installed" "0" "$?"
	check "the service runs" "active" "$(systemctl is-active lnk-supervisor)"
	python3 - <<'P'
text = open("/etc/lnk/supervisor.toml").read()
harness = open("integration/testdata/harness.py").read()
import json
open("/etc/lnk/supervisor.toml", "w").write(text.replace('harness = ["/usr/bin/sleep", "infinity"]', 'harness = ["/usr/bin/python3", "-c", %s]' % json.dumps(harness)))
P
	systemctl restart lnk-supervisor
	lnk box add "$slots" >/tmp/add.log 2>&1
	check "$slots slots" "0" "$?"
	settle
	check "all are blank" "$slots" "$(lnk box status | grep -c ' blank ')"
	internet
	before=$(uids)
	check "a stranger is refused" "125" "$(setpriv --reuid 65533 --regid 65533 --clear-groups lnk box status >/dev/null 2>&1; echo $?)"
	check "the binder binds" "slot 1" "$(echo '{"lan_host": ["10.9.9.2"]}' | setpriv --reuid lnk-binder --regid lnk-binder --clear-groups lnk box bind)"
	sleep 1
	check "its traffic passes" "from the origin" "$(obey 1 "$GET")"
	check "another's doesn't" "" "$(obey 2 "$GET" | grep origin)"
	pid=$(proxy_pid 1)
	systemctl restart lnk-supervisor
	systemctl daemon-reload
	settle
	check "after a restart of the service it is the same process" "$pid" "$(proxy_pid 1)"
	check "still bound" "1:bound" "$(state | cut -d' ' -f1)"
	check "its traffic still passes" "from the origin" "$(obey 1 "$GET")"
	dpkg -i deb-2/*.deb >/tmp/dpkg.log 2>&1
	check "upgraded" "0" "$?"
	check "the service runs after the upgrade" "active" "$(systemctl is-active lnk-supervisor)"
	settle
	check "the bound agent ran on" "$pid" "$(proxy_pid 1)"
	check "its traffic passes after the upgrade" "from the origin" "$(obey 1 "$GET")"
	check "the new version answers" "0" "$(lnk box status >/dev/null; echo $?)"
	kill -9 "$pid"
	sleep 2
	settle
	check "a slot whose proxy was killed is blank again" "1:blank" "$(state | cut -d' ' -f1)"
	echo '{}' | setpriv --reuid lnk-binder --regid lnk-binder --clear-groups lnk box bind --slot 3 >/dev/null
	check "verify" "0" "$(lnk box verify >/tmp/verify.log 2>&1; echo $?)"
	tail -40 /tmp/verify.log
	systemd-analyze security lnk-supervisor --no-pager 2>/dev/null | tail -1
	echo "$before" >/var/lib/uids
	echo "memory of the supervisor: $(grep VmRSS /proc/"$(systemctl show -P MainPID lnk-supervisor)"/status)"
	exit $failed
else
	settle
	check "after a reboot all are blank" "$slots" "$(lnk box status | grep -c ' blank ')"
	check "with the same uids" "$(cat /var/lib/uids)" "$(uids)"
	dpkg -r lnk-supervisor lnk >/tmp/dpkg.log 2>&1
	check "removed" "0" "$?"
	check "nothing of the slots runs" "" "$(pgrep -f 'link-sandbox-proxy|lnk-relay')"
	check "their users stay" "70000" "$(id -u lnk-agent-1)"
	dpkg -i deb-2/*.deb >/tmp/dpkg.log 2>&1
	settle
	check "reinstalled, the same uids" "$(cat /var/lib/uids)" "$(uids)"
	check "and all blank" "$slots" "$(lnk box status | grep -c ' blank ')"
	dpkg -P lnk-supervisor lnk >/tmp/dpkg.log 2>&1
	check "purged" "0" "$?"
	check "no user is left" "" "$(getent passwd | grep lnk-; getent group | grep lnk)"
	check "no file is left" "" "$(ls -d /var/lib/lnk /etc/lnk /run/lnk /usr/lib/lnk 2>/dev/null)"
	check "no cgroup is left" "" "$(ls -d /sys/fs/cgroup/lnk.slice/slot-* 2>/dev/null)"
	exit $failed
fi
