package mpi

import (
	"fmt"
	"time"
)

// beatEvery is the time between two signs of life.
const beatEvery = 2 * time.Second

// pulse is what a rank knows about the life of others: each rank sends a byte to the next one every other second, and
// listens to the one before it.
type pulse struct {
	comm    uintptr
	out, in requests
	sent    []byte
	heard   []byte
	next    time.Time // of the next sign
	last    time.Time // when one was heard
	looked  time.Time // when this rank last looked, which it may have been kept from itself
	gone    bool      // the rank before has said farewell
}

const (
	alive    = 1
	farewell = 2
)

func (e *engine) startPulse() (err error) {
	p := &e.pulse
	if e.Size == 1 {
		return nil
	}
	if p.comm, err = e.lib.communicator(); err != nil {
		return err
	}
	p.sent, p.heard = []byte{alive}, []byte{0}
	p.last, p.looked = time.Now(), time.Now()
	return e.listen()
}

// listen begins to receive the next sign.
func (e *engine) listen() error {
	return e.lib.receive(&e.pulse.in, e.pulse.comm, e.pulse.heard, (e.Rank+e.Size-1)%e.Size, tagBeat)
}

// beat begins to send a sign.
func (e *engine) beat(what byte) error {
	e.pulse.sent[0] = what
	return e.lib.send(&e.pulse.out, e.pulse.comm, e.pulse.sent, (e.Rank+1)%e.Size, tagBeat)
}

// live sends a sign of life when it is time, and ends the job when the rank before this one gives none.
func (e *engine) live() {
	if e.w.aborted.Load() {
		e.lib.end()
	}
	if e.Size == 1 {
		return
	}
	if err := e.tend(time.Now()); err != nil {
		e.fail(err)
	}
}

func (e *engine) tend(now time.Time) error {
	p := &e.pulse
	if now.Sub(p.looked) > beatEvery { // this process has slept, or its device kept it: what others sent waits to be read
		p.last = now
	}
	p.looked = now
	if err := e.hear(now); err != nil {
		return err
	}
	done, err := e.lib.done(&p.out)
	if err != nil {
		return err
	}
	if done && !now.Before(p.next) {
		p.next = now.Add(beatEvery)
		if err := e.beat(alive); err != nil {
			return err
		}
	}
	if silent := now.Sub(p.last); silent > e.o.Silence && !p.gone {
		return fmt.Errorf("rank %d has given no sign of life for %s", (e.Rank+e.Size-1)%e.Size, silent.Round(time.Second))
	}
	return nil
}

// hear takes the signs that have arrived.
func (e *engine) hear(now time.Time) error {
	p := &e.pulse
	for !p.gone {
		done, err := e.lib.done(&p.in)
		if !done || err != nil {
			return err
		}
		p.last = now
		if p.heard[0] == farewell {
			p.gone = true
			return nil
		}
		if err := e.listen(); err != nil {
			return err
		}
	}
	return nil
}

// stopPulse sends a farewell to the next rank and waits for the farewell of the rank before. No message is left then.
func (e *engine) stopPulse() error {
	p, said := &e.pulse, false
	for e.Size > 1 {
		if err := e.hear(time.Now()); err != nil {
			return err
		}
		done, err := e.lib.done(&p.out)
		switch {
		case err != nil:
			return err
		case done && said && p.gone:
			return nil
		case done && !said:
			said = true
			if err := e.beat(farewell); err != nil {
				return err
			}
		}
		if time.Since(p.last) > e.o.Silence && !p.gone {
			return fmt.Errorf("rank %d does not leave", (e.Rank+e.Size-1)%e.Size)
		}
		time.Sleep(10 * time.Microsecond)
	}
	return nil
}
