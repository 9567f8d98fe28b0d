package hostengine

// Field is what DCGM says of a field (dcgm_fields.cpp of DCGM 4). Short, Unit and Width are for
// tables, as of dcgmi dmon.
type Field struct {
	ID          uint16
	Type        byte // DCGM_FT_*: 'i', 'd', 's' or 'b'
	Size        int  // in bytes; 0: it varies, or is not given
	Tag         string
	Level       Level // the lowest level that has it; of NoEntity it is the node's
	NVML        int   // NVML's id of it; 0: it has none
	Short, Unit string
	Width       int
}

// Fields lists the fields that the engine knows, by id.
func Fields() []Field {
	var all []Field
	for _, some := range [][]Field{
		identityFields(),
		clockFields(),
		usageFields(),
		errorFields(),
		profilingFields(),
	} {
		all = append(all, some...)
	}

	return all
}

func identityFields() []Field {
	return []Field{
		{1, 's', 0, "driver_version", NoEntity, 0, "DRVER", "#", 7},
		{2, 's', 0, "nvml_version", NoEntity, 0, "NVVER", "#", 7},
		{4, 'i', 8, "device_count", NoEntity, 0, "DVCNT", "", 5},
		{5, 'i', 0, "cuda_driver_version", NoEntity, 0, "CDVER", "#", 7},
		{50, 's', 0, "name", ComputeInstance, 0, "DVNAM", "", 20},
		{51, 's', 0, "brand", GPU, 0, "DVBRN", "", 10},
		{52, 'i', 8, "nvml_index", GPU, 0, "NVIDX", "", 5},
		{53, 's', 0, "serial_number", GPU, 0, "SRNUM", "", 16},
		{54, 's', 0, "uuid", ComputeInstance, 0, "UUID#", "", 40},
		{55, 'i', 8, "minor_number", GPU, 0, "MNNUM", "", 5},
		{56, 's', 0, "oem_inforom_version", GPU, 0, "OEMVR", "#", 7},
		{57, 's', 0, "pci_busid", GPU, 0, "PCBID", "#", 20},
		{58, 'i', 8, "pci_combined_id", GPU, 0, "PCCID", "#", 10},
		{59, 'i', 8, "pci_subsys_id", GPU, 0, "PCSID", "#", 10},
		{63, 'i', 0, "cuda_compute_capability", GPU, 0, "DVCCC", "", 20},
		{65, 'i', 8, "compute_mode", GPU, 0, "CMMOD", "", 5},
		{66, 'i', 8, "persistance_mode", GPU, 0, "PMMOD", "", 5}, //nolint:misspell // so does DCGM
		{67, 'i', 8, "mig_mode", GPU, 0, "MGMOD", "", 5},
		{69, 'i', 8, "mig_max_slices", GPU, 0, "MIGMS", "", 5},
		{70, 'i', 8, "cpu_affinity_0", GPU, 0, "CAFF0", "", 10},
		{71, 'i', 8, "cpu_affinity_1", GPU, 0, "CAFF1", "", 10},
		{72, 'i', 8, "cpu_affinity_2", GPU, 0, "CAFF2", "", 10},
		{73, 'i', 8, "cpu_affinity_3", GPU, 0, "CAFF3", "", 10},
		{80, 's', 0, "ecc_inforom_version", GPU, 0, "EIVER", "#", 5},
		{81, 's', 0, "power_inforom_version", GPU, 0, "PIVER", "#", 5},
		{82, 's', 0, "inforom_image_version", GPU, 0, "IIVER", "#", 20},
		{85, 's', 0, "vbios_version", GPU, 0, "VBVER", "", 16},
	}
}

func clockFields() []Field {
	return []Field{
		{100, 'i', 8, "sm_clock", GPU, 0, "SMCLK", "", 5},
		{101, 'i', 8, "memory_clock", GPU, 0, "MMCLK", "", 5},
		{102, 'i', 8, "video_clock", GPU, 0, "VICLK", "", 5},
		{110, 'i', 8, "sm_app_clock", GPU, 0, "SACLK", "", 5},
		{111, 'i', 8, "mem_app_clock", GPU, 0, "MACLK", "", 5},
		{112, 'i', 0, "current_clock_throttle_reasons", GPU, 0, "DVCCTR", "", 20},
		{113, 'i', 8, "sm_max_clock", GPU, 0, "SMMAX", "", 5},
		{114, 'i', 8, "memory_max_clock", GPU, 0, "MMMAX", "", 5},
		{115, 'i', 8, "video_max_clock", GPU, 0, "VIMAX", "", 5},
		{140, 'i', 8, "memory_temp", GPU, 82, "MMTMP", "C", 10},
		{150, 'i', 8, "gpu_temp", GPU, 0, "TMPTR", " C", 5},
		{151, 'i', 8, "gpu_mem_max_op_temp", GPU, 0, "GMMOT", " C", 5},
		{152, 'i', 8, "gpu_max_op_temp", GPU, 0, "GGMOT", " C", 5},
		{155, 'd', 8, "power_usage", GPU, 0, "POWER", " W", 10},
		{156, 'i', 8, "total_energy_consumption", GPU, 83, "TOTEC", " mJ", 16},
		{158, 'i', 8, "slowdown_temp", GPU, 0, "SDTMP", " C", 5},
		{159, 'i', 8, "shutdown_temp", GPU, 0, "SHTMP", " C", 5},
		{160, 'd', 8, "power_management_limit", GPU, 0, "PMLMT", " W", 10},
		{161, 'd', 8, "power_management_limit_min", GPU, 0, "PMMIN", " W", 10},
		{162, 'd', 8, "power_management_limit_max", GPU, 0, "PMMAX", " W", 10},
		{163, 'd', 8, "power_management_limit_default", GPU, 0, "PMDEF", " W", 10},
		{164, 'd', 8, "enforced_power_limit", GPU, 0, "EPLMT", " W", 10},
		{190, 'i', 8, "pstate", GPU, 0, "PSTAT", "", 5},
		{191, 'i', 8, "fan_speed", GPU, 0, "FANSP", "", 5},
	}
}

func usageFields() []Field {
	return []Field{
		{90, 'i', 8, "bar1_total", ComputeInstance, 0, "B1TTL", "", 5},
		{92, 'i', 8, "bar1_used", ComputeInstance, 0, "B1USE", "", 5},
		{93, 'i', 8, "bar1_free", ComputeInstance, 0, "B1FRE", "", 5},
		{200, 'i', 8, "pcie_tx_throughput", GPU, 0, "TXTPT", "KB/", 7},
		{201, 'i', 8, "pcie_rx_throughput", GPU, 0, "RXTPT", "KB/", 7},
		{202, 'i', 8, "pcie_replay_counter", GPU, 0, "RPCTR", "#", 5},
		{203, 'i', 8, "gpu_utilization", GPU, 0, "GPUTL", "", 10},
		{204, 'i', 8, "mem_copy_utilization", GPU, 0, "MCUTL", "", 10},
		{206, 'i', 8, "enc_utilization", GPU, 0, "ECUTL", "", 10},
		{207, 'i', 8, "dec_utilization", GPU, 0, "DCUTL", "", 10},
		{235, 'i', 8, "pcie_max_link_gen", GPU, 0, "PCIMG", "", 5},
		{236, 'i', 8, "pcie_max_link_width", GPU, 0, "PCIMW", "", 5},
		{237, 'i', 8, "pcie_link_gen", GPU, 0, "PCILG", "", 5},
		{238, 'i', 8, "pcie_link_width", GPU, 0, "PCILW", "", 5},
		{250, 'i', 8, "fb_total", ComputeInstance, 0, "FBTTL", "", 10},
		{251, 'i', 8, "fb_free", ComputeInstance, 0, "FBFRE", "", 10},
		{252, 'i', 8, "fb_used", ComputeInstance, 0, "FBUSD", "", 10},
		{253, 'i', 8, "fb_resv", ComputeInstance, 0, "FBRSV", "", 10},
		{254, 'd', 8, "fb_USDP", ComputeInstance, 0, "FBUSP", "", 10},
		{440, 'i', 8, "nvlink_bandwidth_l0", GPU, 0, "NBWL0", "MB/", 20},
		{449, 'i', 8, "nvlink_bandwidth_total", GPU, 0, "NBWLT", "MB/", 20},
		{500, 'i', 8, "virtualization_mode", GPU, 0, "VMODE", "", 5},
		{526, 'i', 8, "vgpu_instance_license_status", VGPU, 0, "VLCST", "", 5},
	}
}

func errorFields() []Field {
	return []Field{
		{230, 'i', 8, "xid_errors", ComputeInstance, 0, "XIDER", "", 5},
		{240, 'i', 8, "power_violation", GPU, 74, "PVIOL", "", 10},
		{241, 'i', 8, "thermal_violation", GPU, 75, "TVIOL", "", 10},
		{242, 'i', 8, "sync_boost_violation", GPU, 76, "SBVIO", "", 10},
		{243, 'i', 8, "board_limit_violation", GPU, 77, "BLVIO", "", 20},
		{244, 'i', 8, "low_util_violation", GPU, 78, "LUVIO", "", 20},
		{245, 'i', 8, "reliability_violation", GPU, 79, "RVIOL", "", 20},
		{246, 'i', 8, "app_clock_violation", GPU, 80, "TAPCV", "", 20},
		{247, 'i', 8, "base_clock_violation", GPU, 81, "TAPBC", "", 20},
		{300, 'i', 8, "ecc", GPU, 1, "ECCUR", "", 5},
		{301, 'i', 8, "ecc_pending", GPU, 2, "ECPEN", "", 5},
		{310, 'i', 8, "ecc_sbe_volatile_total", GPU, 3, "ESVTL", "", 5},
		{311, 'i', 8, "ecc_dbe_volatile_total", GPU, 4, "EDVTL", "", 5},
		{312, 'i', 8, "ecc_sbe_aggregate_total", GPU, 5, "ESATL", "", 5},
		{313, 'i', 8, "ecc_dbe_aggregate_total", GPU, 6, "EDATL", "", 5},
		{390, 'i', 8, "retired_pages_sbe", GPU, 0, "RPSBE", "", 16},
		{391, 'i', 8, "retired_pages_dbe", GPU, 30, "RPDBE", "", 16},
		{392, 'i', 8, "retired_pages_pending", GPU, 31, "RPPEN", "", 10},
		{393, 'i', 8, "uncorrectable_remapped_rows", GPU, 143, "URMPS", "", 10},
		{394, 'i', 8, "correctable_remapped_rows", GPU, 142, "CRMPS", "", 10},
		{395, 'i', 8, "row_remap_failure", GPU, 145, "RRF", "", 20},
		{396, 'i', 8, "row_remap_pending", GPU, 144, "RRP", "", 20},
		{409, 'i', 8, "nvlink_flit_crc_error_count_total", GPU, 38, "NFELT", "", 20},
		{419, 'i', 8, "nvlink_data_crc_error_count_total", GPU, 45, "NDELT", "", 20},
		{429, 'i', 8, "nvlink_replay_error_count_total", GPU, 52, "NRELT", "", 20},
		{439, 'i', 8, "nvlink_recovery_error_count_total", GPU, 59, "NRCLT", "", 20},
	}
}

func profilingFields() []Field {
	return []Field{
		{1001, 'd', 0, "gr_engine_active", ComputeInstance, 0, "GRACT", "", 5},
		{1002, 'd', 0, "sm_active", ComputeInstance, 0, "SMACT", "", 5},
		{1003, 'd', 0, "sm_occupancy", ComputeInstance, 0, "SMOCC", "", 5},
		{1004, 'd', 0, "tensor_active", ComputeInstance, 0, "TENSO", "", 5},
		{1005, 'd', 0, "dram_active", GPUInstance, 0, "DRAMA", "", 5},
		{1006, 'd', 0, "fp64_active", ComputeInstance, 0, "FP64A", "", 5},
		{1007, 'd', 0, "fp32_active", ComputeInstance, 0, "FP32A", "", 5},
		{1008, 'd', 0, "fp16_active", ComputeInstance, 0, "FP16A", "", 5},
		{1009, 'i', 0, "pcie_tx_bytes", GPU, 0, "PCITX", "", 20},
		{1010, 'i', 0, "pcie_rx_bytes", GPU, 0, "PCIRX", "", 20},
		{1011, 'i', 0, "nvlink_tx_bytes", GPU, 0, "NVLTX", "", 20},
		{1012, 'i', 0, "nvlink_rx_bytes", GPU, 0, "NVLRX", "", 20},
	}
}
