package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Without persistence mode, a GPU in confidential-computing mode can become unusable until a reset
// when the process that opened it first ends (aleph-im/aleph-vm#1271). So this program opens such
// GPUs only while another process keeps them open, as nvidia-persistenced does.

// openFilesTimeout bounds the search for processes that have a GPU open.
const openFilesTimeout = 5 * time.Second

// errFirstToOpen is the error with which we refuse to open the GPUs.
var errFirstToOpen = errors.New(
	"refusing to be the first to open the GPUs: in confidential-computing mode without " +
		"persistence mode they can become unusable until a reset when this process ends. Expected a process that " +
		"keeps them open, such as nvidia-persistenced --persistence-mode",
)

// openingGuard decides whether this process may open the GPUs of a machine.
type openingGuard struct {
	proc, sys string
	handles   control.Handles
}

// mayOpen returns why this process may not open the GPUs; nil if it may. confidential is whether the
// driver says that they are in confidential-computing mode.
func (o openingGuard) mayOpen(confidential gpu.Opt[bool]) error {
	if !o.isConfidential(confidential) {
		return nil
	}

	minors, err := readMinors(o.proc)
	if err != nil {
		return fmt.Errorf("%w. The GPUs are not known: %w", errFirstToOpen, err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), openFilesTimeout)
	defer cancel()

	for _, minor := range minors {
		held, err := o.handles.Open(ctx, mig.GPULayout{
			Facts: gpu.Facts{
				UUID:  gpu.UUID(fmt.Sprintf("/dev/nvidia%d", minor)),
				Minor: gpu.Some(minor),
			},
		})
		if err != nil {
			return fmt.Errorf("%w. Whether there is one is unknown: %w", errFirstToOpen, err)
		}

		if len(held) == 0 {
			return fmt.Errorf("%w. None has /dev/nvidia%d open", errFirstToOpen, minor)
		}
	}

	return nil
}

// isConfidential reports whether we take the GPUs to be in confidential-computing mode. If the driver
// does not say, we do so if the machine can be a confidential guest: others have no such GPUs.
func (o openingGuard) isConfidential(confidential gpu.Opt[bool]) bool {
	return confidential.Or(o.isConfidentialGuest())
}

// isConfidentialGuest reports whether the machine can be a confidential virtual machine, by the
// devices of its guest drivers: AMD SEV-SNP (drivers/virt/coco/sev-guest of Linux) and Intel TDX
// (drivers/virt/coco/tdx-guest). A device that cannot be examined may exist.
func (o openingGuard) isConfidentialGuest() bool {
	misc := filepath.Join(o.sys, "class", "misc")
	return anyExists(filepath.Join(misc, "sev-guest"), filepath.Join(misc, "tdx_guest"))
}

// readMinors returns the minor numbers of the GPUs that the kernel driver has bound, which needs no
// open GPU.
func readMinors(proc string) ([]int, error) {
	files, err := filepath.Glob(filepath.Join(proc, "driver", "nvidia", "gpus", "*", "information"))
	if err != nil {
		return nil, err
	}

	if len(files) == 0 {
		return nil, fmt.Errorf("%s/driver/nvidia/gpus lists none: %w", proc, gpu.ErrNotFound)
	}

	var minors []int

	for _, file := range files {
		minor, err := readMinor(file)
		if err != nil {
			return nil, err
		}

		minors = append(minors, minor)
	}

	return minors, nil
}

// readMinor reads the line "Device Minor: 	 0" of a GPU's file.
func readMinor(path string) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()

	lines := bufio.NewScanner(file)
	for lines.Scan() {
		value, ok := strings.CutPrefix(lines.Text(), "Device Minor:")
		if !ok {
			continue
		}

		minor, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil {
			return 0, fmt.Errorf("%s: %q: expected a minor number", path, lines.Text())
		}

		return minor, nil
	}

	if err := lines.Err(); err != nil {
		return 0, err
	}

	return 0, fmt.Errorf("%s: expected a line with the Device Minor", path)
}

// listOpenMinors lists the minor numbers of the GPUs that a process has open. files is its folder of
// open files, such as /proc/self/fd.
func listOpenMinors(files string) ([]int, error) {
	entries, err := os.ReadDir(files)
	if err != nil {
		return nil, err
	}

	node := regexp.MustCompile(`/nvidia([0-9]+)( \(deleted\))?$`)
	var minors []int

	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(files, e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was closed meanwhile
		}

		if err != nil {
			return nil, err
		}

		found := node.FindStringSubmatch(target)
		if found == nil {
			continue
		}

		minor, err := strconv.Atoi(found[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", target, err)
		}

		minors = append(minors, minor)
	}

	slices.Sort(minors)

	return slices.Compact(minors), nil
}

// mayOpen applies the same rule to a simulated node, whose persistence mode keeps the GPUs open.
func (s simulation) mayOpen(confidential gpu.Opt[bool]) error {
	if confidential.Or(false) && !s.Scenario().Node.PersistenceMode {
		return fmt.Errorf("%w. None has the simulated GPUs open", errFirstToOpen)
	}

	return nil
}
