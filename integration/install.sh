#!/usr/bin/env bash
# Installs what lnk and its tests need, where it is missing: bubblewrap to
# run at all, and the clients that the tests put into sandboxes. With the
# argument "run", only what the demonstration needs.
set -euo pipefail

declare -A package=(
  [bwrap]=bubblewrap [curl]=curl
)
if [[ ${1:-all} != run ]]; then
  package+=([wget]=wget [python3]=python3 [ps]=procps [unshare]=util-linux [setpriv]=util-linux [git]=git [strace]=strace [valgrind]=valgrind
    [setfacl]=acl [ssh]=openssh-client [openssl]=openssl
    [sshd]=openssh-server [redis-server]=redis-server [psql]=postgresql [musl-gcc]=musl-tools [busybox]=busybox-static)
  command -v dnf >/dev/null && package[ps]=procps-ng
fi

missing=()
for program in "${!package[@]}"; do
  PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
[[ -e /etc/ssl/certs/ca-certificates.crt || -e /etc/pki/tls/certs/ca-bundle.crt ]] || missing+=(ca-certificates)
if [[ ${1:-all} != run ]]; then
  command -v gcc >/dev/null || missing+=(gcc) # go test -race
  /usr/bin/python3 -c 'import requests, httpx, aiohttp' 2>/dev/null || missing+=(python3-requests python3-httpx python3-aiohttp)
fi

packages() { # a database's driver, and what native addons are built with
  [[ ${1:-all} != run ]] && command -v npm >/dev/null || return 0
  local folder
  folder=$(dirname "$0")/.node
  [[ -d $folder/node_modules/mongodb && -d $folder/node_modules/node-api-headers ]] && return 0
  mkdir -p "$folder"
  npm install --silent --no-audit --no-fund --no-save --no-package-lock --prefix "$folder" mongodb@6 node-api-headers@1 >/dev/null ||
    echo "install.sh: npm can't fetch mongodb and node-api-headers: their tests are skipped" >&2
}

if [[ ${#missing[@]} -eq 0 ]]; then
  packages "$@"
  exit 0
fi

sudo=()
if [[ $(id -u) != 0 ]]; then
  command -v sudo >/dev/null || { echo "install.sh: missing: ${missing[*]}. Install them as root, and try again." >&2; exit 1; }
  sudo=(sudo)
fi
echo "installing: ${missing[*]}" >&2
if command -v apt-get >/dev/null; then
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
elif command -v dnf >/dev/null; then
  "${sudo[@]}" dnf install -y -q "${missing[@]}"
else
  echo "install.sh: neither apt-get nor dnf: install ${missing[*]}, and try again." >&2
  exit 1
fi
packages "$@"
