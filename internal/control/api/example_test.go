package api_test

import (
	"encoding/json"
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// A request for a plan: on GPU 0 one 3g.20gb with two compute instances, and two 1g.5gb. Clients and server use the
// same type.
func ExamplePlanRequest() {
	const body = `{"spec": {"gpus": [0], "devices": {"3g.20gb": {"compute": ["1c", "2c"]}, "1g.5gb": 2}}}`

	var request api.PlanRequest
	if err := json.Unmarshal([]byte(body), &request); err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(request.Spec.GPUs, request.Spec.Devices["3g.20gb"].Count, request.Spec.Devices["1g.5gb"].Count)

	document, err := json.Marshal(request)
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(string(document))
	// Output:
	// [0] 1 2
	// {"spec":{"gpus":["0"],"devices":{"1g.5gb":2,"3g.20gb":{"count":1,"compute":["1c","2c"]}}}}
}

// A demand for further instances of whichever profile has that much memory.
func ExampleSpec() {
	demand := api.Spec{Demand: []api.Need{{Memory: 12 << 30, SMs: 20, Count: 3}}}

	document, err := json.Marshal(demand)
	if err != nil {
		fmt.Println(err)
		return
	}

	fmt.Println(string(document))

	err = json.Unmarshal([]byte(`{"demand": [{"memory": "12 giga"}]}`), &demand)
	fmt.Println(err)
	// Output:
	// {"demand":[{"memory":12884901888,"sms":20,"count":3}]}
	// size "12 giga": expected a whole number of bytes, or one with a unit, such as "12GiB" or "20GB"
}
