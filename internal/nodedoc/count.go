package nodedoc

import "fmt"

// Count returns a number with what it counts, such as "1 GPU" and "2 GPUs".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}

	return fmt.Sprintf("%d %s", n, many)
}
