// Pause holds a pod's network namespace open and ends at once when it is told
// to: as process 1 it would otherwise ignore SIGTERM, and every pod's end would
// wait for its grace period.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
