#!/usr/bin/env bash
# Shows a sandbox at work against a small internet of its own, so it needs
# none: installs what is missing, builds, and runs a real curl as an ordinary
# user. Root is needed once, for the namespaces of that internet.
set -euo pipefail
cd "$(dirname "$0")/.."

./integration/install.sh run
make --no-print-directory build
demo=$(mktemp -d)
trap 'rm -rf "$demo"' EXIT
CGO_ENABLED=0 go build -o "$demo/demo" ./integration/demo
if [[ $(id -u) == 0 ]]; then
  "$demo/demo" bin
else
  sudo "$demo/demo" bin
fi
