//go:build metal

package metal

import (
	"fmt"
	"strings"

	"github.com/snug-ml/snug/internal/driver"
)

// backend opens the GPUs that have what kernels need, in the system's order.
type backend struct {
	load func() (*api, error)
}

// Count returns how many GPUs there are that Open can open.
func (b backend) Count() (int, error) {
	a, devs, err := b.devices()
	for _, dev := range devs {
		a.release(dev)
	}
	return len(devs), err
}

// Open opens the GPU of that number.
func (b backend) Open(index int) (driver.Driver, error) {
	a, devs, err := b.devices()
	if err != nil {
		return nil, err
	}
	for i, dev := range devs {
		if i != index {
			defer a.release(dev)
		}
	}
	if index < 0 || index >= len(devs) {
		return nil, fmt.Errorf("metal: device %d of %d: %w", index, len(devs), driver.ErrDevice)
	}
	return newDevice(a, devs[index])
}

// devices returns the GPUs that can be used, at least one; the caller releases
// them. The error says what was found.
func (b backend) devices() (*api, []object, error) {
	a, err := b.load()
	if err != nil {
		return nil, nil, err
	}
	defer a.scope()()
	var usable []object
	var found []string
	for _, dev := range a.newDevices() {
		if a.hasFamily(dev, familyApple7) {
			usable = append(usable, dev)
			continue
		}
		found = append(found, a.deviceName(dev))
		a.release(dev)
	}
	switch {
	case len(usable) > 0:
		return a, usable, nil
	case len(found) > 0:
		return nil, nil, fmt.Errorf("metal: found %s: kernels need a GPU of family Apple 7, which is an M1 or later: %w",
			strings.Join(found, ", "), driver.ErrDevice)
	}
	return nil, nil, fmt.Errorf("metal: the system has no GPU for this process: %w", driver.ErrDevice)
}
