#!/bin/bash
# Makes the archives of kubectl mig for all platforms, and its krew manifest, in DIST. `make kubectl` starts it, with VERSION,
# LDFLAGS, DIST, PLATFORMS and ADDRESS in the environment.
set -euo pipefail
umask 022

mkdir -p "$DIST"
dist=$(realpath "$DIST")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/sbom" ./cmd/sbom
sed -e "s|@VERSION@|$VERSION|g" -e "s|@ADDRESS@|$ADDRESS|g" deploy/krew/mig.yaml >"$work/mig.yaml"

for platform in $PLATFORMS; do
	os=${platform%/*} arch=${platform#*/} program=kubectl-mig
	if [[ $os == windows ]]; then
		program=kubectl-mig.exe
	fi
	name=kubectl-mig-$VERSION.$os-$arch tree=$work/$os-$arch
	mkdir "$tree"
	(cd cmd/kubectl-mig &&
		CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -ldflags "$LDFLAGS" -o "$tree/$program" . &&
		"$work/sbom" -version "$VERSION" -sbom "$tree/sbom.cdx.json" -licenses "$tree/THIRD_PARTY_LICENSES" "$tree/$program")
	cp LICENSE "$tree"
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		-C "$tree" -c . | gzip -9n >"$dist/$name.tar.gz"
	sum=$(sha256sum "$dist/$name.tar.gz" | cut -d' ' -f1)
	sed -i "s|@SHA256:$os-$arch@|$sum|" "$work/mig.yaml"
done
cp "$work/mig.yaml" "$dist/mig.yaml"
ls -l "$dist"
