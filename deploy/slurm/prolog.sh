#!/bin/bash
# Slurm Prolog: writes the job into the file of each of its GPUs and GPU instances, for mig-exporter's
# --hpc.job-mapping-dir. epilog.sh takes it out again. Installation: docs/deploy-slurm.md.
#
# It always exits with 0: Slurm drains a node whose Prolog fails, and a missing label is no reason for that. What it cannot
# do is logged (journalctl -t mig-exporter-prolog).
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C # slurmd sets no PATH
umask 022
shopt -s nullglob

# For tests.
nvidia_smi=${NVIDIA_SMI:-nvidia-smi}
boot_id_file=${BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}
defaults=${MIG_EXPORTER_DEFAULTS:-/etc/default/mig-exporter}

note() {
	logger -t mig-exporter-prolog -- "job ${job:-unknown}: $*" 2>/dev/null || echo "mig-exporter-prolog: $*" >&2
}

# folder prints the folder of the files: that of the exporter's own configuration.
folder() {
	local dir=${MIG_EXPORTER_HPC_JOB_MAPPING_DIR:-}
	if [[ -z $dir && -r $defaults ]]; then
		dir=$(sed -n 's/^MIG_EXPORTER_HPC_JOB_MAPPING_DIR=["'\'']\{0,1\}\([^"'\'']*\).*/\1/p' "$defaults" | tail -n 1)
	fi
	echo "${dir:-/run/mig-exporter-jobs}"
}

# forget removes a job from all files. A file without jobs is removed.
forget() {
	local file rest
	for file in [0-9]*; do
		if [[ ! -f $file || -L $file ]] || ! grep -qxF -- "$1" "$file"; then
			continue
		fi
		if rest=$(grep -vxF -- "$1" "$file"); then
			printf '%s\n' "$rest" >".new" && mv -f .new "$file"
		else
			rm -f "$file"
		fi
	done
}

# table prints how Slurm names the node's devices and the file of each: "GPU-<uuid> 3", "minor-2 3", "MIG-<uuid> 3.7" and,
# for GPUs with MIG devices, "split 3". It takes three listings: -L has the UUIDs of MIG devices, the plain table their GPU
# instances, -q the minor numbers.
table() {
	local uuids instances minors
	uuids=$(timeout 15 "$nvidia_smi" -L) && instances=$(timeout 15 "$nvidia_smi") &&
		minors=$(timeout 15 "$nvidia_smi" -q) || return 1
	printf '%s\n%s\n%s\n' "$uuids" "$instances" "$minors" | awk '
		function uuid(line) { sub(/.*UUID: /, "", line); sub(/\).*/, "", line); return line }
		/^GPU [0-9]+: / { gpu = $2 + 0; print uuid($0), gpu; next }
		/^ +MIG .*Device +[0-9]+: / {
			device = $0; sub(/.*Device +/, "", device)
			of[gpu, device + 0] = uuid($0); print "split", gpu; next
		}
		/^\| +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +\|/ { # GPU, GPU instance, compute instance, device
			if (($2 + 0, $5 + 0) in of) print of[$2 + 0, $5 + 0], $2 + 0 "." $3 + 0
		}
		/^GPU [0-9A-Fa-f]+:[0-9A-Fa-f]+:/ { count++ } # in the order of their indices
		/^ +Minor Number +: [0-9]+ *$/ { print "minor-" $NF, count - 1 }
	'
}

# file_of prints the file of a device as Slurm names it: a UUID, or the number of /dev/nvidia<number>.
file_of() {
	local -a legacy
	case $1 in
	MIG-GPU-*/*/*) # before driver 470: MIG-GPU-<uuid>/<GPU instance>/<compute instance>
		IFS=/ read -ra legacy <<<"${1#MIG-}"
		[[ ${legacy[1]} =~ ^[0-9]+$ && -n ${file[${legacy[0]}]:-} ]] && echo "${file[${legacy[0]}]}.${legacy[1]}"
		;;
	GPU-* | MIG-*) [[ -n ${file[$1]:-} ]] && echo "${file[$1]}" ;;
	*)
		[[ $1 =~ ^[0-9]{1,4}$ ]] || return
		local gpu=${file[minor-$1]:-}
		if ((!known)); then
			echo "$1"
		elif [[ -n $gpu && -z ${split[$gpu]:-} ]]; then # the number of a MIG device is no GPU's
			echo "$gpu"
		fi
		;;
	esac
}

job=${SLURM_JOB_ID:-}
visible=${CUDA_VISIBLE_DEVICES:-}
# Slurm 25.11 and MIG have UUIDs there. Otherwise the numbers of SLURM_JOB_GPUS count; jobs with shards or MPS have none.
[[ $visible == *[GM][PI][UG]-* ]] || visible=${SLURM_JOB_GPUS:-$visible}
if [[ ! $job =~ ^[0-9]{1,20}$ ]]; then
	[[ -z $visible ]] || note "SLURM_JOB_ID is no number: nothing is written"
	exit 0
fi
[[ -n $visible && $visible != NoDevFiles ]] || exit 0

dir=$(folder)
if ! mkdir -p -- "$dir" || ! cd -- "$dir"; then
	note "folder $dir cannot be used"
	exit 0
fi
if [[ ! -O . || -n $(find . -maxdepth 0 -perm /022) ]]; then
	note "folder $dir belongs to another user or others may write to it: nothing is written"
	exit 0
fi

declare -A file=() split=()
known=1
lines=$(table) || { known=0; note "nvidia-smi does not answer: numbers are taken for indices of GPUs"; }
while read -r key value; do
	case $key in
	"") ;;
	split) split[$value]=1 ;;
	*) file[$key]=$value ;;
	esac
done <<<"$lines"

exec 9>.lock
if ! flock -w 15 9; then
	note "folder $dir is locked: nothing is written"
	exit 0
fi
boot=$(cat "$boot_id_file")
if [[ $boot != "$(cat .boot 2>/dev/null)" ]]; then # jobs of another boot have ended without an epilog
	rm -f [0-9]*
	printf '%s\n' "$boot" >.boot
fi
forget "$job" # it may have been requeued
IFS=, read -ra devices <<<"$visible"
for device in "${devices[@]}"; do
	name=$(file_of "$device")
	if [[ -z $name ]]; then
		note "device ${device@Q} is not on this node"
		continue
	fi
	{
		[[ ! -f $name ]] || grep -vxF -- "$job" "$name" # two devices of one GPU instance
		printf '%s\n' "$job"
	} >.new
	mv -f .new "$name"
done
exit 0
