#!/bin/sh
# After installation and upgrade of lnk: its AppArmor profile is loaded, where
# the machine has AppArmor.
set -e
if [ -d /sys/kernel/security/apparmor ] && command -v apparmor_parser >/dev/null; then
	apparmor_parser --replace --skip-bad-cache /etc/apparmor.d/lnk || true
fi
