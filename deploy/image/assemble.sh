#!/bin/bash
# Assembles the root file system of the image: the programs, the C library of this machine, licenses and SBOM. The driver's
# library is put in by the NVIDIA container toolkit. `make stage` comes first; the Dockerfile runs both.
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
copyright=(/usr/share/doc/libc6/copyright)
if compgen -G "$dcgm/*.deb" >/dev/null; then
	unpacked=$(mktemp -d)
	trap 'rm -rf "$unpacked"' EXIT
	for package in "$dcgm"/*.deb; do
		dpkg-deb -x "$package" "$unpacked"
	done
	(cd "$unpacked" && find . \( -name '*.so*' -o -name copyright -o -iname 'license*' \) ! -type d -print0 |
		xargs -0 cp -a --parents -t "$root")
	names+=(libstdc++.so.6 libgcc_s.so.1)
	copyright+=(/usr/share/doc/gcc-12-base/copyright)
fi
for name in "${names[@]}"; do
	add "$folder/$name"
done
for file in "${copyright[@]}" /etc/ssl/certs/ca-certificates.crt; do
	if [[ -e $file ]]; then
		add "$file"
	fi
done
# The toolkit takes the driver's libraries to Debian's folders if this file is there.
cat /etc/debian_version >"$root/etc/debian_version" 2>/dev/null || echo 12 >"$root/etc/debian_version"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
printf '%s\n' 'root:x:0:0:root:/:/sbin/nologin' 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'nonroot:x:65532:' >"$root/etc/group"
install -D -m 644 -t "$root/usr/share/doc/mig-exporter" LICENSE bin/stage/THIRD_PARTY_LICENSES bin/stage/sbom.cdx.json
find "$root" -exec touch -h -d "@$epoch" {} +
