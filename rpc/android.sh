#!/bin/sh
# A native runner on an Android phone that stays there without edgetune, for TVM's own RPC clients.
#
#     android.sh start FOLDER [THREADS]   put the runner of FOLDER onto the phone, and have it listen
#     android.sh status                   whether it does
#     android.sh stop                     end it and its sessions, and remove what they left
#     android.sh remove                   the same, and remove everything that start brought
#
# `edgetune devices add NAME adb://SERIAL` needs none of this. FOLDER is what this prints:
#     python -c 'from edgetune.devices.native import assemble; print(assemble("aarch64").path)'
#
# The runner is adb's user, `shell`, and has no other rights than it. It listens on no network: on a socket in a
# folder that no app may enter, which `adb forward` makes a port of this machine's loopback. A client must know the
# key that start makes anew each time and writes to standard output, with the port:
#     tvm.rpc.connect("127.0.0.1", PORT, KEY)
#
# Environment: ADB, the program (adb); ANDROID_SERIAL, which phone; EDGETUNE_HOME, the folder on the phone.
set -eu

adb=${ADB:-adb}
home=${EDGETUNE_HOME:-/data/local/tmp/edgetune-listen}

fail() {
  echo "android.sh: $*" >&2
  exit 1
}

phone() { "$adb" shell "$1"; }

# The process listens on, its sessions are processes of their own that hold the lock; both lead their groups.
stop() {
  phone "cd '$home' 2>/dev/null || exit 0
    exec 2>/dev/null
    for file in pid lock; do
      read -r pid rest < \$file || continue
      case \$(cat /proc/\$pid/cmdline | tr '\\0' ' ') in
        *'$home/'*) kill -TERM \$pid; sleep 0.3; kill -KILL -\$pid \$pid ;;
      esac
    done
    rm -rf pid key socket lock log sessions" < /dev/null
  "$adb" forward --list 2>/dev/null | while read -r serial port place; do
    [ "$place" != "localfilesystem:$home/socket" ] || "$adb" forward --remove "$port" < /dev/null
  done
}

start() {
  folder=${1:-}
  threads=${2:-0}
  [ -x "$folder/runner" ] || fail "start wants the folder of a runner; see the head of this file"
  [ "$("$adb" get-state < /dev/null 2>/dev/null)" = device ] ||
    fail "no phone answers; connect one, allow USB debugging, and name it with ANDROID_SERIAL if there are several"
  [ "$threads" -gt 0 ] || threads=$(phone "grep -c ^processor /proc/cpuinfo" < /dev/null | tr -d '\r')
  stop
  # From here on, what does not succeed leaves nothing behind.
  trap 'remove' EXIT
  trap 'exit 1' INT TERM HUP
  phone "umask 077; mkdir -p '$home/runner' && chmod 700 '$home'" < /dev/null
  "$adb" push "$folder/." "$home/runner" < /dev/null > /dev/null || fail "the phone cannot store the runner; free space"
  key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  # Through a pipe: arguments stand in lists of processes, here and there.
  printf '%s\n' "$key" | phone "umask 077; cat > '$home/key'"
  program="'$home/runner/runner'"
  before="LD_LIBRARY_PATH='$home/runner'"
  for loader in "$folder"/ld-linux*; do
    [ ! -e "$loader" ] || { program="'$home/runner/${loader##*/}' --library-path '$home/runner' $program" before=; }
  done
  # A session of its own: it stays when adb's connection goes.
  phone "cd '$home' && umask 077 && chmod 700 runner/* && { $before setsid $program listen --threads $threads --home '$home' \
    --key-file '$home/key' --wait 30 < /dev/null > log 2>&1 & echo \$! > pid; }" < /dev/null
  tries=0
  until phone "grep -q listening '$home/log'" < /dev/null; do
    tries=$((tries + 1))
    { [ $tries -lt 40 ] && phone "kill -0 \$(cat '$home/pid')" < /dev/null 2>/dev/null; } || fail "the runner does not start: $(phone "cat '$home/log'" < /dev/null)"
    sleep 0.25
  done
  # The one that listens says its number: setsid may have started it as a child.
  phone "set -- \$(grep listening '$home/log') && echo \$3 > '$home/pid'" < /dev/null
  port=$("$adb" forward tcp:0 "localfilesystem:$home/socket" < /dev/null | tr -d '\r')
  trap - EXIT
  printf 'port %s\nkey %s\n' "$port" "$key"
}

remove() {
  stop
  phone "rm -rf '$home'" < /dev/null
}

status() {
  phone "read -r pid < '$home/pid' 2>/dev/null && kill -0 \$pid 2>/dev/null && echo \"listening, process \$pid\" || echo stopped" \
    < /dev/null
}

case ${1:-} in
  start) shift && start "$@" ;;
  stop | remove | status) "$1" ;;
  *) fail "usage: android.sh start FOLDER [THREADS] | status | stop | remove" ;;
esac
