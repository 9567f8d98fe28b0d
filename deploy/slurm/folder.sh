# shellcheck shell=bash
# What prolog.sh and epilog.sh share: the folder of the files, and their changes. Both look for this file beside themselves,
# and set script, their name in the log.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C # slurmd sets no PATH
umask 022
shopt -s nullglob

# For tests.
defaults=${MIG_EXPORTER_DEFAULTS:-/etc/default/mig-exporter}
time_limit=${SECONDS_TO_WAIT:-15} # for nvidia-smi, and for the lock

: "${script:=unknown}"
job=${SLURM_JOB_ID:-}
files=()

note() {
	"${LOGGER:-logger}" -t "mig-exporter-$script" -- "job ${job:-unknown}: $*" 2>/dev/null ||
		echo "mig-exporter-$script: $*" >&2
}

# folder prints the folder of the files: that of the exporter's own configuration.
folder() {
	local dir=${MIG_EXPORTER_HPC_JOB_MAPPING_DIR:-}
	if [[ -z $dir && -r $defaults ]]; then
		dir=$(sed -n 's/^MIG_EXPORTER_HPC_JOB_MAPPING_DIR=["'\'']\{0,1\}\([^"'\'']*\).*/\1/p' "$defaults" | tail -n 1)
	fi
	[[ ${dir:=/run/mig-exporter-jobs} == /* ]] || dir=/dev/null/$dir # relative to what, the exporter does not know either
	realpath -ms -- "$dir"                                           # links stay
}

# trusted reports whether root alone decides what the folder $1 is and contains: it and all folders above it are root's and
# no symbolic links, and no other user may write to them. A folder above ($2 is "above") may be writable to all if it is
# sticky, as /tmp is: other users cannot replace what root has there. What is missing is created.
#
# It starts at /, so what has been checked cannot be replaced any more. In tests this user stands for root.
trusted() {
	local above=${1%/*} closed=(! -perm /022)
	[[ ${2:-} != above ]] || closed=(\( ! -perm /022 -o -perm -1000 \))
	[[ $1 == / ]] || trusted "${above:-/}" above || return
	[[ -e $1 ]] || mkdir -- "$1" 2>/dev/null # another prolog may be quicker
	if [[ -z $(find "$1" -maxdepth 0 -type d \( -uid 0 -o -uid "$EUID" \) "${closed[@]}" 2>/dev/null) ]]; then
		note "folder $dir cannot be used: $1 is no folder, a link, not root's, or others may write to it"
		return 1
	fi
}

# enter changes into the folder $1, which is trusted, and locks it until the script ends. It fails, with a note, if it
# cannot. A user that may read a file may also lock it: the lock is a file that no other user has ever been able to open.
# Anything else of that name is from a time when others could write to the folder, and is replaced.
enter() {
	if ! cd -- "$1"; then
		note "folder $1 cannot be used: it cannot be opened"
		return 1
	fi
	find .lock -maxdepth 0 ! \( -type f -uid "$EUID" -perm 0600 -links 1 \) -exec rm -rf {} + 2>/dev/null
	(umask 077 && set -o noclobber && : >.lock) 2>/dev/null # another script may be quicker
	if ! exec 9<>.lock; then
		note "folder $1 cannot be used: its file .lock cannot be opened"
		return 1
	fi
	if ! flock -w "$time_limit" 9; then
		note "folder $1 is locked by another process: the job is not changed in it"
		return 1
	fi
}

# readable reports whether $1 is a file that can be read at once, unlike a FIFO, and that is in the folder, unlike a link.
readable() { [[ -f $1 && ! -L $1 ]]; }

# list sets files to the names of all files of devices, "3" and "3.7". Nothing else in the folder is touched.
list() {
	local name
	files=()
	for name in [0-9]*; do
		[[ ! $name =~ ^[0-9]+(\.[0-9]+)?$ || -d $name ]] || files+=("$name")
	done
}

# replace replaces the file $1 by its input. A link that is there is replaced, too, not followed.
replace() {
	if ! { rm -rf .new && (set -o noclobber && cat >.new) && mv -fT .new "$1"; }; then
		note "file $1 cannot be written"
	fi
}

# forget removes the job from all files. A file without jobs is removed.
forget() {
	local name rest
	list
	for name in ${files[@]+"${files[@]}"}; do # empty, it is unset to bash before 4.4
		if ! readable "$name" || ! grep -qxF -- "$job" "$name"; then
			continue
		fi
		if rest=$(grep -vxF -- "$job" "$name"); then
			replace "$name" <<<"$rest"
		else
			rm -f "$name"
		fi
	done
}
