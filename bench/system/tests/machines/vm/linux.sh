#!/bin/busybox sh
# shellcheck shell=dash
# The first program of a Linux guest that moves between compute nodes: copies and compares files in remote memory, keeps
# a number on the disk, and prints each pass on the serial line.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module"
done
mkdir /far
mount -t tmpfs -o mpol=bind:1,size=40m far /far
head -c 8388608 /dev/urandom >/far/first
sum=$(sha256sum </far/first)
pass=0
while true; do
    pass=$((pass + 1))
    cp /far/first "/far/copy$((pass % 4))"
    [ "$(sha256sum <"/far/copy$((pass % 4))")" = "$sum" ] || echo "wrong memory in pass $pass" >/dev/ttyS0
    found=$(dd if=/dev/vda bs=512 count=1 2>/dev/null | tr -d '\0')
    [ "$pass" = 1 ] || [ "$found" = "number $((pass - 1))" ] || echo "wrong disk in pass $pass: $found" >/dev/ttyS0
    printf 'number %s' "$pass" | dd of=/dev/vda bs=512 conv=notrunc,fsync,sync 2>/dev/null
    echo "pass $pass" >/dev/ttyS0
done
