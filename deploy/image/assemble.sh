#!/bin/bash
# Assembles the root file system of the image: the programs, the C library of this machine, licenses and SBOM. The driver's
# library is put in by the NVIDIA container toolkit. `make` comes first; the Dockerfile runs both.
#   deploy/image/assemble.sh ROOT [FOLDER]     FOLDER: NVIDIA's packages of DCGM 4 (*.deb), whose libraries go into the image
set -euo pipefail
root=$(realpath -m "$1")
dcgm=${2:-}
epoch=${SOURCE_DATE_EPOCH:-0}
umask 022

libraries() { # of a program or a library: its loader and all that it is linked with
	ldd "$1" | grep -o '/[^ ]* (0x' | cut -d' ' -f1
}
add() {
	install -D -m "$(stat -Lc %a "$1")" "$1" "$root$1"
}

mkdir -p "$root"/{etc,proc,sys,dev,run,var/lib/mig-exporter,usr/bin}
install -d -m 1777 "$root/tmp"
install -m 755 bin/mig-exporter bin/migctl "$root/usr/bin/"
for library in $({ libraries bin/mig-exporter && libraries bin/migctl; } | sort -u); do
	add "$library"
done
# What the driver's library is linked with besides, and DCGM's.
folder=$(dirname "$(ldd bin/mig-exporter | grep -o '/[^ ]*/libc\.so\.6')")
names=(libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1)
packages=(libc6 ca-certificates)
if compgen -G "$dcgm/*.deb" >/dev/null; then
	unpacked=$(mktemp -d)
	trap 'rm -rf "$unpacked"' EXIT
	for package in "$dcgm"/*.deb; do
		dpkg-deb -x "$package" "$unpacked"
	done
	(cd "$unpacked" && find . \( -name '*.so*' -o -name copyright -o -iname 'license*' \) ! -type d -print0 |
		xargs -0 cp -a --parents -t "$root")
	names+=(libstdc++.so.6 libgcc_s.so.1)
	packages+=(libstdc++6 libgcc-s1)
fi
for name in "${names[@]}"; do
	add "$folder/$name"
done
add /etc/ssl/certs/ca-certificates.crt
for package in "${packages[@]}"; do
	add "/usr/share/doc/$package/copyright"
done
# The toolkit takes the driver's libraries to Debian's folders if this file is there.
cat /etc/debian_version >"$root/etc/debian_version" 2>/dev/null || echo 12 >"$root/etc/debian_version"
# By this file the program knows that it is in a container, which may not see the host's kubelet.
: >"$root/etc/mig-exporter-image"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'nonroot:x:65532:' >"$root/etc/group"
# The hook of the toolkit that makes the driver's library known writes the folders it has mounted to ld.so.conf.d and runs
# ldconfig. It updates a cache that is there and makes none, and Debian's loader looks into /usr/lib64 by the cache alone.
mkdir -p "$root/etc/ld.so.conf.d"
echo 'include /etc/ld.so.conf.d/*.conf' >"$root/etc/ld.so.conf"
ldconfig -r "$root"
rm -rf "$root/var/cache" # of ldconfig; it has inode numbers

doc=$root/usr/share/doc/mig-exporter
install -D -m 644 -t "$doc" LICENSE
release=$(sed -n 's/^VERSION_ID="\(.*\)"/\1/p' /etc/os-release)
{
	dpkg-query -W -f "debian \${Package} \${Version} \${Architecture} debian-$release \${source:Package}\\n" "${packages[@]}"
	for package in "$dcgm"/*.deb; do
		[[ ! -e $package ]] || dpkg-deb -W --showformat "nvidia \${Package} \${Version} \${Architecture}\\n" "$package"
	done
} | go run ./cmd/sbom -version "$(cat VERSION)" -sbom "$doc/sbom.cdx.json" -licenses "$doc/THIRD_PARTY_LICENSES" \
	-packages /dev/stdin bin/mig-exporter bin/migctl
find "$root" -exec touch -h -d "@$epoch" {} +
