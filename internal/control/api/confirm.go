package api

// Confirmation answers POST /api/v1/devices/{uuid}/confirm-free.
type Confirmation struct {
	APIVersion string `json:"apiVersion"`
	Device     string `json:"device"`
	// Confirmed are the containers that may have held the device and count no longer. It is empty
	// if none was known.
	Confirmed []UnconfirmedHolder `json:"confirmed"`
	// Note says for how long it counts, or that there was nothing to confirm.
	Note string `json:"note"`
}

// UnconfirmedHolder is a container that may have held a device.
type UnconfirmedHolder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Reason    string `json:"reason"` // why it was not known whether it holds it
}
