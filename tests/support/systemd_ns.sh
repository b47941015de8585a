#!/bin/bash
# A real systemd as PID 1 of namespaces of its own:   systemd_ns.sh FOLDER PREFIX PACKAGE...
#
# It finds the units in FOLDER/units, /etc/relayd in FOLDER/etc, and below /opt/relayd/venv, where
# the units expect it, a relayd that runs on the Python in PREFIX with these packages (folders).
# /run, /var, /opt, the cgroups and the unit folders are its own; the network, /tmp and the rest are
# the machine's. Its log goes to standard output; it ends with this process. Root is needed.
#
# To run a program inside:   nsenter -t $(cat FOLDER/pid) -m -p PROGRAM
set -eu
FOLDER=$1 PREFIX=$2
shift 2
export FOLDER PREFIX

inside() {
    set -e
    mount --make-rprivate /
    # Or what systemd mounts for one service (its credentials) would not be seen by the others.
    mount --make-rshared /
    mount -t tmpfs tmpfs /run
    mkdir -p /run/systemd/system /run/lock
    umount -l /sys/fs/cgroup 2>/dev/null || true
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mkdir -p /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified 2>/dev/null || true
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    mount -t tmpfs tmpfs /var
    mkdir -p /var/lib /var/cache /var/log /var/tmp
    chmod 1777 /var/tmp

    mkdir -p "$FOLDER/upper" "$FOLDER/work"
    mount -t tmpfs tmpfs "$FOLDER/upper"
    mkdir "$FOLDER/upper/u" "$FOLDER/upper/w"
    mount -t overlay -o "lowerdir=/etc,upperdir=$FOLDER/upper/u,workdir=$FOLDER/upper/w" none /etc
    mkdir -p /etc/relayd
    mount --bind "$FOLDER/etc" /etc/relayd
    mount --bind "$FOLDER/units" /etc/systemd/system

    mount -t tmpfs tmpfs /opt
    SITE=/opt/relayd/venv/lib/$(basename "$(readlink -f "$PREFIX/bin/python3")")/site-packages
    mkdir -p /opt/python "$SITE" /opt/relayd/venv/bin
    mount --bind "$PREFIX" /opt/python
    for package in "$@"; do
        mkdir "$SITE/$(basename "$package")"
        mount --bind "$package" "$SITE/$(basename "$package")"
    done
    ln -s /opt/python/bin/python3 /opt/relayd/venv/bin/python
    echo "home = /opt/python/bin" > /opt/relayd/venv/pyvenv.cfg
    printf '#!/opt/relayd/venv/bin/python\nimport sys\nfrom relayd.cli import main\nsys.exit(main())\n' \
        > /opt/relayd/venv/bin/relayd
    chmod 755 /opt/relayd/venv/bin/relayd

    mount -t tmpfs tmpfs /usr/lib/systemd/system
    for target in sysinit basic sockets multi-user network network-online shutdown umount final \
        local-fs paths slices timers default; do
        printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $target \
            > /usr/lib/systemd/system/$target.target
    done
    exec /lib/systemd/systemd --system --unit=default.target \
        --log-target=console --log-level=info
}
export -f inside

unshare --mount --pid --fork --cgroup --mount-proc --kill-child bash -c 'inside "$@"' inside "$@" &
OUTER=$!
trap 'kill -KILL $OUTER 2>/dev/null' EXIT
until PID=$(pgrep -P $OUTER) && [ "$(cat "/proc/$PID/comm")" = systemd ]; do
    kill -0 $OUTER
    sleep 0.05
done
echo "$PID" > "$FOLDER/pid"
echo "systemd_ns: process $PID"
wait $OUTER
