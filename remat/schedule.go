package remat

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// levels are the slots for inputs of stages: slots in memory, which cost nothing to use, and
// slots in a slower tier, called the disk here. A slot takes the input of any one stage; the
// schedules are for chains of equal stages.
type levels struct {
	memory int // slots in memory
	disk   int // slots on disk

	// write and read are the times of moving one input to and from the disk, as multiples of
	// the time of a forward step: for inputs of b bytes, a rate of r bytes a second and
	// forward steps of f seconds, b/(r·f).
	write float64
	read  float64
}

// maxTransfer limits the time of a transfer, so that no sum is infinite.
const maxTransfer = 1 << 32

// validate reports whether l has no negative number of slots and at least one slot, and
// transfers that take between 0 and 2^32 forward steps.
func (l levels) validate() error {
	if l.memory < 0 || l.disk < 0 || l.memory == 0 && l.disk == 0 {
		return fmt.Errorf("remat: hrevolve: %d slots in memory, %d on disk: want 0 or more, and at least one: %w", l.memory, l.disk, snug.ErrConfig)
	}
	for _, cost := range [...]float64{l.write, l.read} {
		if !(cost >= 0 && cost <= maxTransfer) {
			return fmt.Errorf("remat: hrevolve: a transfer takes %v forward steps: want a number from 0 to 2^32: %w", cost, snug.ErrConfig)
		}
	}
	return nil
}

// levelKind is what an operation of a schedule does.
type levelKind uint8

// The kinds of operations of a schedule. The zero levelKind is none. One input is held
// outside of the slots, the working value; there is none after reverse.
const (
	advance     levelKind = iota + 1 // run the stage forward: a_i, the working value, becomes a_{i+1}
	reverse                          // run the stage forward from the working value, save, and run it backward
	storeMemory                      // copy the working value a_i to a slot in memory
	storeDisk                        // copy it to a slot on disk
	loadMemory                       // make a copy of a_i in memory the working value
	loadDisk                         // make a copy of a_i on disk the working value
	dropMemory                       // release the slot of a_i in memory
	dropDisk                         // release the slot of a_i on disk
)

// levelOp is one operation on stage i or on its input a_i.
type levelOp struct {
	kind  levelKind
	stage int
}

// schedule is one forward and backward pass over a chain whose inputs of stages are kept on
// two levels, by the decisions of the recurrences of [HRevolve]. Its method plan writes it as a
// [Plan]. It starts with a_0 as the working value and not in a slot.
type schedule struct {
	name   string
	stages int
	ops    []levelOp
}
