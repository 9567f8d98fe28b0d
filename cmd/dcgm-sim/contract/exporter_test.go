package contract

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// An exporter on go-dcgm as NVIDIA's dcgm-exporter is one: which calls it makes of which functions,
// in which order, and which values it leaves out. What it serves on the library is what
// dcgm-exporter serves.

// defaultList are the counters that dcgm-exporter's two files have switched on.
func defaultList(t *testing.T) []string {
	t.Helper()

	var names []string
	for _, row := range defaultRows(t) {
		names = append(names, row[0])
	}

	return names
}

// defaultRows are name, type and places of the counters of the default list.
func defaultRows(t *testing.T) [][]string {
	t.Helper()

	file, err := os.Open("../../../testdata/dcgm-exporter-default.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := csv.NewReader(file)
	r.Comment = '#'
	r.FieldsPerRecord = 3

	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}

	return rows
}

// driverVersion is no counter but a label of all series.
const driverVersion = "DCGM_FI_DRIVER_VERSION"

// optionalList are those that the two files have switched off.
func optionalList() []string {
	return []string{
		"DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
		"DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", "DCGM_FI_DEV_LOW_UTIL_VIOLATION", "DCGM_FI_DEV_RELIABILITY_VIOLATION",
		"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
		"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
		"DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_RETIRED_PENDING",
		"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
		"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
		"DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
		"DCGM_FI_NVML_VERSION", "DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_OEM_INFOROM_VER",
		"DCGM_FI_DEV_ECC_INFOROM_VER",
		"DCGM_FI_DEV_POWER_INFOROM_VER", "DCGM_FI_DEV_INFOROM_IMAGE_VER", "DCGM_FI_DEV_VBIOS_VERSION",
		"DCGM_FI_PROF_SM_ACTIVE",
		"DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
		"DCGM_FI_PROF_PIPE_FP16_ACTIVE",
	}
}

// exporter is one that has begun.
type exporter struct {
	names    map[dcgm.Short]string
	fields   []dcgm.Short
	entities []exported
}

// exported is what an exporter has series of, with their labels.
type exported struct {
	dcgm.GroupEntityPair
	labels string
}

// newExporter begins as dcgm-exporter does. Of GPUs with GPU instances it exports these alone, or,
// with whole, both.
func newExporter(counters []string, whole bool) (*exporter, error) {
	if ret := dcgm.FieldsInit(); ret < 0 {
		return nil, fmt.Errorf("fields: %d", ret)
	}

	x := &exporter{names: map[dcgm.Short]string{}}
	profiled := map[uint]bool{}

	if groups, err := dcgm.GetSupportedMetricGroups(0); err == nil {
		for _, g := range groups {
			for _, f := range g.FieldIds {
				profiled[f] = true
			}
		}
	}

	for _, name := range counters {
		id, ok := dcgm.GetFieldID(name)
		if !ok {
			return nil, fmt.Errorf("%s: no such field", name)
		}

		if id >= 1000 && id < 1100 && !profiled[uint(id)] {
			continue
		}

		switch meta := dcgm.FieldGetByID(id); meta.EntityLevel {
		case dcgm.FE_NONE, dcgm.FE_GPU, dcgm.FE_GPU_I, dcgm.FE_GPU_CI, dcgm.FE_VGPU:
			x.fields = append(x.fields, id)
			x.names[id] = name
		}
	}

	if err := x.find(whole); err != nil {
		return nil, err
	}

	return x, x.watch()
}

// find lists the GPUs and GPU instances. There are no switches, and no processors that DCGM knows.
func (x *exporter) find(whole bool) error {
	count, err := dcgm.GetAllDeviceCount()
	if err != nil {
		return err
	}

	devices := make([]dcgm.Device, count)
	for i := range devices {
		if devices[i], err = dcgm.GetDeviceInfo(uint(i)); err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
	}

	if err := noOthers(); err != nil {
		return err
	}

	h, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil {
		return err
	}

	instances := make([][]dcgm.MigHierarchyInfo_v2, count)

	for _, e := range h.EntityList[:h.Count] {
		if e.Parent.EntityGroupId == dcgm.FE_GPU {
			instances[e.Parent.EntityId] = append(instances[e.Parent.EntityId], e)
		}
	}

	for i, d := range devices {
		labels := fmt.Sprintf("gpu=%d UUID=%s pci_bus_id=%s modelName=%s", i, d.UUID, d.PCI.BusID, d.Identifiers.Model)
		if whole || len(instances[i]) == 0 {
			x.entities = append(x.entities, exported{dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: uint(i)},
				labels})
		}

		for _, e := range instances[i] {
			names, err := dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{e.Entity}, []dcgm.Short{dcgm.DCGM_FI_DEV_NAME},
				dcgm.DCGM_FV_FLAG_LIVE_DATA)
			if err != nil {
				return err
			}

			x.entities = append(x.entities, exported{e.Entity,
				fmt.Sprintf("%s GPU_I_PROFILE=%s GPU_I_ID=%d", labels, dcgm.Fv2_String(names[0]), e.Info.NvmlInstanceId)})
		}
	}

	return nil
}

// noOthers asks for what is neither a GPU nor an instance. The fields of links that dcgm-exporter
// asks for are those of the node: an error would cost it all series.
func noOthers() error {
	if switches, err := dcgm.GetEntityGroupEntities(dcgm.FE_SWITCH); err != nil || len(switches) > 0 {
		return fmt.Errorf("switches %v: %w", switches, err)
	}

	if h, err := dcgm.GetCPUHierarchy(); err == nil {
		return fmt.Errorf("%d processors", h.NumCPUs)
	}

	links, err := dcgm.GetNvLinkLinkStatus()
	if err != nil {
		return err
	}

	up := 0

	for _, l := range links {
		if l.State == dcgm.LS_UP {
			up++

			if _, err := dcgm.LinkGetLatestValues(l.Index, l.ParentType, l.ParentId,
				[]dcgm.Short{dcgm.DCGM_FI_DRIVER_VERSION}); err != nil {
				return fmt.Errorf("link %d: %w", l.Index, err)
			}
		}
	}

	if up == 0 {
		return errors.New("no link is up")
	}

	return nil
}

func (x *exporter) watch() error {
	group, err := dcgm.CreateGroup("gpu-collector-group")
	if err != nil {
		return err
	}

	for _, e := range x.entities {
		if err := dcgm.AddEntityToGroup(group, e.EntityGroupId, e.EntityId); err != nil {
			return err
		}
	}

	fieldGroup, err := dcgm.FieldGroupCreate("gpu-collector-fieldgroup", x.fields)
	if err != nil {
		return err
	}

	if err := dcgm.WatchFieldsWithGroupEx(fieldGroup, group, 1_000_000, 0, 1); err != nil {
		return err
	}

	return dcgm.UpdateAllFields()
}

// scrape returns the series by family and labels.
func (x *exporter) scrape() (map[string]map[string]string, error) {
	families := map[string]map[string]string{}

	for _, e := range x.entities {
		values, err := dcgm.EntityGetLatestValues(e.EntityGroupId, e.EntityId, x.fields)
		if err != nil {
			return nil, err
		}

		labels := e.labels

		for _, v := range values {
			if text, ok := textOf(v); ok && x.names[v.FieldID] == driverVersion {
				labels += " " + driverVersion + "=" + text
			}
		}

		for _, v := range values {
			name := x.names[v.FieldID]
			if text, ok := textOf(v); ok && name != driverVersion {
				if families[name] == nil {
					families[name] = map[string]string{}
				}

				families[name][labels] = text
			}
		}
	}

	return families, nil
}

// textOf is a value as it is served; false for one with another status than OK, and for a blank.
func textOf(v dcgm.FieldValue_v1) (string, bool) {
	if v.Status != 0 {
		return "", false
	}

	switch v.FieldType {
	case dcgm.DCGM_FT_INT64:
		n := v.Int64()

		return strconv.FormatInt(n, 10), !dcgm.IsInt64Blank(n) &&
			(n < dcgm.DCGM_FT_INT32_BLANK || n > dcgm.DCGM_FT_INT32_NOT_PERMISSIONED)
	case dcgm.DCGM_FT_DOUBLE:
		x := v.Float64()
		return fmt.Sprintf("%f", x), x < dcgm.DCGM_FT_FP64_BLANK
	case dcgm.DCGM_FT_STRING:
		text := v.String()
		return text, text != dcgm.DCGM_FT_STR_BLANK && text != dcgm.DCGM_FT_STR_NOT_SUPPORTED
	}

	return "", false
}
