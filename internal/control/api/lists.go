package api

// Selector names a GPU: its index, UUID or PCI bus id, or "all". In JSON it is a string or a whole number.
type Selector string

// DeviceList is mig-parted's list of GPUs: "all", or indexes. All is set for the former.
type DeviceList struct {
	All     bool
	Indexes []int
}

// Strings is one string or a list of them.
type Strings []string

// Bytes is a number of bytes: in JSON a whole number, or a string with a unit ("12GiB", "20GB").
type Bytes uint64
