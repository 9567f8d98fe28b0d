package nodedoc

import "fmt"

// Count returns a number and the noun for it: "1 GPU", "2 GPUs".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}

	return fmt.Sprintf("%d %s", n, many)
}
