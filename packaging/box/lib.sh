# What the scripts here share. Each is run as root on a throw-away machine with
# systemd, in a copy of the repository that has been built:
#
#   sh packaging/box/walls.sh
#
# It installs lnk, makes a user, prints what it does and what came of it, and
# exits with 1 if anything was other than expected.

failed=0
version() { . /etc/os-release; echo "$PRETTY_NAME, Linux $(uname -r), $(bwrap --version)"; }

install_lnk() {
  install -m 755 bin/lnk /usr/bin/lnk
  install -D -m 755 -t /usr/lib/lnk bin/lnk-relay bin/link-sandbox-proxy
  id scout >/dev/null 2>&1 || useradd --create-home scout
  loginctl enable-linger scout
  runtime=/run/user/$(id -u scout)
  while [ ! -d "$runtime" ]; do sleep 0.2; done
}

# as runs a command as the ordinary user, in its home.
as() {
  (cd /home/scout && exec setpriv --reuid scout --regid scout --clear-groups env -i HOME=/home/scout USER=scout PATH=/usr/local/bin:/usr/bin:/bin \
    XDG_RUNTIME_DIR="$runtime" "$@")
}

# expect NAME CODE TEXT command…: its exit code, and a part of what it says.
expect() {
  name=$1 code=$2 text=$3
  shift 3
  said=$("$@" 2>&1)
  got=$?
  if [ "$got" = "$code" ] && printf '%s\n' "$said" | grep -qF -- "$text"; then
    echo "ok    $name"
  else
    echo "FAIL  $name: exit code $got, not $code, or no \"$text\" in:"
    printf '%s\n' "$said" | sed 's/^/        /'
    failed=1
  fi
}
