#!/bin/sh
# Before removal: slots end, and their users stay, so that the uids in what is
# kept of them are nobody else's. An upgrade ends nothing.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl stop --quiet lnk-supervisor.service || true
	fi
	lnk-supervisor end
	;;
esac
