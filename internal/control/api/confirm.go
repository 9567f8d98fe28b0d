package api

// Confirmation answers POST /api/v1/devices/{uuid}/confirm-free.
type Confirmation struct {
	APIVersion string `json:"apiVersion"`
	Device     string `json:"device"`
	// Confirmed are the containers that may have held the device, and that we don't take for holders
	// any more. It is empty if there was none.
	Confirmed []UnconfirmedHolder `json:"confirmed"`
	// Note says for how long the confirmation counts, or that there was nothing to confirm.
	Note string `json:"note"`
}

// UnconfirmedHolder is a container that may have held a device.
type UnconfirmedHolder struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Reason    string `json:"reason"` // why we didn't know whether it holds the device
}
