#!/bin/sh
# packages_inside.sh - what tests/packages.sh runs in a clean root in which the packages are installed: /debs has them,
# /next the same in a newer version.
set -eu
fail() { echo "packages_inside.sh: $*" >&2; exit 1; }

echo "-- programs and pages"
for program in "zctl --version" "zgpt --version" "zshardd --version"; do
    $program
done
zbench help >/dev/null 2>&1 || zbench --help >/dev/null
for page in "1 zctl" "1 zctl-jobs" "1 zctl-log-level" "1 zgpt" "1 zbench" "5 zshardd.conf" "8 zshardd"; do
    [ "$(man $page | wc -l)" -gt 10 ] || fail "man $page"
done
bash -c '. /usr/share/bash-completion/completions/zctl && complete -p zctl' >/dev/null
[ "$(stat -c %U:%a /etc/zshard/zshardd.conf)" = root:644 ] || fail "zshardd.conf"
grep -q '^socket_group = zshard$' /etc/zshard/zshardd.conf
[ -e /lib/systemd/system/zshardd.service ] || fail "no unit"
# What the man pages name is where they say, and can be read and imported as it is.
for page in zshardd zshardd.conf zctl-metrics; do
    MANWIDTH=500 man "$page" | grep -o '/usr/share/doc/zshard/[A-Za-z0-9_./*-]*[a-z*]' >/tmp/named || fail "man $page names no page"
    while read -r file; do
        ls -d $file >/dev/null || fail "man $page: no $file"
    done </tmp/named
done
[ -e /usr/share/doc/zshard/prometheus/zshard_dashboard.json ] || fail "no dashboard"
[ -e /usr/share/doc/zshardd/README.Debian ] || fail "no README.Debian"
[ ! -e /etc/systemd/system/multi-user.target.wants/zshardd.service ] || fail "a new installation enabled the service"

echo "-- the daemon, as its own user"
install -d -o zshard -g zshard -m 0700 /var/lib/zshard
install -d -o zshard -g zshard /run/zshard
STATE_DIRECTORY=/var/lib/zshard setpriv --reuid zshard --regid zshard --init-groups \
    zshardd --config /etc/zshard/zshardd.conf --host-bytes 64M --nvme-bytes 128M 2>/tmp/log &
daemon=$!
zctl --wait 60 ping || { cat /tmp/log; exit 1; }
zctl status
zctl tiers

echo "-- programs of users: find_package, pkg-config, a trainer"
mkdir /tmp/cmake
cp /usr/share/doc/libzclient-dev/examples/hello.c /tmp/cmake/
cat >/tmp/cmake/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(user C)
find_package(zclient 0.1 REQUIRED)
add_executable(hello hello.c)
target_link_libraries(hello PRIVATE zclient::zclient)
CMAKE
cmake -S /tmp/cmake -B /tmp/cmake/build >/dev/null
cmake --build /tmp/cmake/build >/dev/null
/tmp/cmake/build/hello
gcc -o /tmp/hello /tmp/cmake/hello.c $(pkg-config --cflags --libs zclient)
/tmp/hello
zgpt --steps 2 --seed 1 --batch 2 --micro-batch 2 --seq 16 --layers 1 --heads 1 --width 8 --data /tmp/cmake/hello.c --job packages \
    --keep --offload nvme >/dev/null
zctl jobs
kill -TERM $daemon
wait $daemon || fail "the daemon's status is $?"

echo "-- upgrade: keeps the configuration; restarts the service and does not stop it"
echo '# mine' >>/etc/zshard/zshardd.conf
# A systemd that only notes what it is told: packages ask it where this folder exists.
mkdir -p /run/systemd/system
for name in deb-systemd-invoke systemctl; do
    printf '#!/bin/sh\necho "%s $*" >>/tmp/calls\n' $name >/usr/local/bin/$name
    chmod +x /usr/local/bin/$name
done
dpkg -i /next/*.deb >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; exit 1; }
dpkg-query -W -f '${Package} ${Version} ${Status}\n' zshardd | grep -q '+next install ok installed'
tail -n 1 /etc/zshard/zshardd.conf | grep -qx '# mine' || fail "the upgrade changed the configuration"
grep -qx 'deb-systemd-invoke try-restart zshardd.service' /tmp/calls || { cat /tmp/calls; fail "no restart"; }
grep -q 'stop' /tmp/calls && { cat /tmp/calls; fail "the upgrade stops the service"; }

echo "-- what was saved is there after the upgrade"
STATE_DIRECTORY=/var/lib/zshard setpriv --reuid zshard --regid zshard --init-groups \
    zshardd --config /etc/zshard/zshardd.conf --host-bytes 64M --nvme-bytes 128M 2>/tmp/log &
daemon=$!
zctl --wait 60 ping
zctl jobs -o json | grep -q '"name": "packages"' || fail "the job is gone"
kill -TERM $daemon
wait $daemon

echo "-- back to the older version, then removal"
dpkg -i /debs/*.deb >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; exit 1; }
dpkg-query -W -f '${Package} ${Version}\n' zshardd
tail -n 1 /etc/zshard/zshardd.conf | grep -qx '# mine' || fail "going back changed the configuration"
names=$(for file in /debs/*.deb; do dpkg-deb -f "$file" Package; done)
dpkg -L $names | sort -u >/tmp/files
: >/tmp/calls
dpkg --remove $names >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; exit 1; }
grep -qx 'deb-systemd-invoke stop zshardd.service' /tmp/calls || { cat /tmp/calls; fail "removal does not stop the service"; }
[ -e /etc/zshard/zshardd.conf ] || fail "removal took the configuration"
dpkg --purge $names >/tmp/dpkg 2>&1 || { cat /tmp/dpkg; exit 1; }
left=$(while read -r file; do [ -d "$file" ] || [ ! -e "$file" ] || echo "$file"; done </tmp/files)
[ -z "$left" ] || fail "left after purge: $left"
found=$(find / -xdev \( -path /proc -o -path /debs -o -path /next -o -path /var/lib/zshard -o -path /run -o -path /tmp -o \
    -path /var/log -o -path /var/cache/man \) -prune -o \( -name '*zshard*' -o -name '*zclient*' -o -name 'zctl*' \) -print)
[ -z "$found" ] || fail "left after purge: $found"
[ -n "$(ls /var/lib/zshard)" ] || fail "purge took the data"
echo "-- removed; the data is still in /var/lib/zshard"
