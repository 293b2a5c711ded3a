package kerneltest

import (
	"errors"
	"fmt"
	"io"
)

// ErrFault is what calls of tests fail or panic with.
var ErrFault = errors.New("fault")

// ErrExit stands for the end of the goroutine, as testing.T's FailNow ends it.
var ErrExit = fmt.Errorf("the goroutine ends: %w", ErrFault)

// Recovered returns the error or the panic of f, or ErrExit if that ends its goroutine.
func Recovered(f func() error) error {
	result := make(chan error, 1)
	go func() {
		err := ErrExit
		defer func() {
			if p := recover(); p != nil {
				err = p.(error)
			}
			result <- err
		}()
		err = f()
	}()
	return <-result
}

// FaultStream reads from Reader and drops what is written. It panics with ErrFault when more
// than Left bytes have passed.
type FaultStream struct {
	Reader interface {
		io.Reader
		io.ReaderAt
	}
	Left int
}

func (s *FaultStream) pass(b []byte) {
	if s.Left -= len(b); s.Left < 0 {
		panic(ErrFault)
	}
}

func (s *FaultStream) Read(b []byte) (int, error) {
	s.pass(b)
	return s.Reader.Read(b)
}

// ReadAt implements [io.ReaderAt].
func (s *FaultStream) ReadAt(b []byte, at int64) (int, error) {
	s.pass(b)
	return s.Reader.ReadAt(b, at)
}

func (s *FaultStream) Write(b []byte) (int, error) {
	s.pass(b)
	return len(b), nil
}
