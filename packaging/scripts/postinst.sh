#!/bin/sh
# After installation and upgrade. Slots that run go on: see the unit.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers lnk-supervisor.conf
else
	getent group lnk >/dev/null || groupadd --system lnk
	getent passwd lnk-binder >/dev/null || useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin lnk-binder
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ -z "$2" ] && [ "$1" != 2 ]; then
		systemctl enable --quiet lnk-supervisor.service
	fi
	if systemctl is-enabled --quiet lnk-supervisor.service; then
		systemctl restart lnk-supervisor.service || echo "lnk-supervisor didn't start: journalctl -u lnk-supervisor" >&2
	fi
fi
