#!/bin/sh
# After removal; on purge the slots' users go, and all that was kept.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
if [ "$1" = purge ]; then
	state=/var/lib/lnk/slots.json
	if [ -f "$state" ]; then
		for n in $(sed -n 's/.*"number": *\([0-9][0-9]*\).*/\1/p' "$state"); do
			for user in "lnk-agent-$n" "lnk-proxy-$n"; do
				if getent passwd "$user" >/dev/null; then userdel "$user" || true; fi
				if getent group "$user" >/dev/null; then groupdel "$user" || true; fi
			done
			if getent group "lnk-slot-$n" >/dev/null; then groupdel "lnk-slot-$n" || true; fi
		done
	fi
	if getent passwd lnk-binder >/dev/null; then userdel lnk-binder || true; fi
	if getent group lnk >/dev/null; then groupdel lnk || true; fi
	rm -rf /var/lib/lnk /run/lnk
	rm -f /etc/systemd/system/multi-user.target.wants/lnk-supervisor.service
	rmdir /etc/lnk 2>/dev/null || true
fi
