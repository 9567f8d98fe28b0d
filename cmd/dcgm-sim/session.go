package main

// #include "abi.h"
import "C"

//export dcgmInit
func dcgmInit() C.int {
	l := loaded()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users++
	return C.SIM_DCGM_ST_OK
}

//export dcgmShutdown
func dcgmShutdown() C.int {
	l := loaded()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == 0 {
		return C.SIM_DCGM_ST_UNINITIALIZED
	}
	l.users--
	return C.SIM_DCGM_ST_OK
}

// dcgmStartEmbedded: the mode of operation makes no difference here.
//
//export dcgmStartEmbedded
func dcgmStartEmbedded(_ C.int, handle *C.uintptr_t) C.int { return loaded().open(handle) }

//export dcgmStopEmbedded
func dcgmStopEmbedded(handle C.uintptr_t) C.int { return loaded().close(handle) }

// dcgmConnect_v2 refuses what is not the address of the simulated engine.
//
//export dcgmConnect_v2
func dcgmConnect_v2(address *C.char, params *C.sim_dcgmConnectV2Params_v2, handle *C.uintptr_t) C.int { //nolint:revive // DCGM's name
	if address == nil || params == nil {
		return C.SIM_DCGM_ST_BADPARAM
	}
	if params.version != C.SIM_dcgmConnectV2Params_version2 {
		return C.SIM_DCGM_ST_VER_MISMATCH
	}
	if only := getenv("MIG_SIM_DCGM_ADDRESS"); only != "" && only != C.GoString(address) {
		return C.SIM_DCGM_ST_CONNECTION_NOT_VALID
	}
	return loaded().open(handle)
}

//export dcgmDisconnect
func dcgmDisconnect(handle C.uintptr_t) C.int { return loaded().close(handle) }

//export DcgmFieldsInit
func DcgmFieldsInit() C.int { return C.SIM_DCGM_ST_OK }

//export DcgmFieldsTerm
func DcgmFieldsTerm() C.int { return C.SIM_DCGM_ST_OK }
