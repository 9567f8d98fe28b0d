// Package deploy tests what is installed on nodes: systemd's units, Slurm's scripts, the Debian
// package, the image's root file system. It has no code of its own. `make test-packages` builds the
// packages and runs it.
package deploy
