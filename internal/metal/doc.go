// Package metal drives Apple GPUs. With the build tag metal it registers the
// kind "metal" on macOS; without it, or on another system, it is empty.
//
// The raw layer is one struct of functions, api, each the twin of one message
// to an Objective-C object; objc_darwin.go fills it in. All else is above it and
// is tested on any system against a fake api.
//
// A device has two queues. Kernels, products and copies that the caller orders
// go to the first, in command buffers of many commands; copies that run
// concurrently go to the second. Every command buffer ends with a signal of its queue's
// event, whose value counts the command buffers, so that one queue can wait for
// the other. Command buffers retain the memory that they use, so it can be freed
// while queued work still reads it.
package metal
