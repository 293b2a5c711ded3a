package vision

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/quant8"
)

// CacheOptions are the options of a [Cache].
type CacheOptions struct {
	// About tells what else features depend on: the weights of the tower, the type and the device of the encoder, the files of the processor
	// with [Processor.Using], and DecodeOptions, such as by the SHA-256 of all of them. Features that were stored under another About are not found.
	About [sha256.Size]byte
	// DType is the type of stored features: F32, F16 or BF16. That of the model loses nothing, because its projector reads them so. With 8
	// Bits it is ignored, and Get returns float32.
	DType snug.DType
	// Bits are 8 for one byte an element, with a scale for each 256 of them, and otherwise 0.
	Bits int
}

// Cache keeps the [Features] of images in pages of a store, on disk or on the host within its limit: a frozen tower runs once for each
// image, and training goes on without it. An image takes one page of [Input.FeatureBytes].
//
// A page is found by the sum of the image's file, or of a video's frames, its layout and the options, so that a store serves runs over other data and other models.
// What is durable is said by [Cache.Commit].
//
// A Cache is for one goroutine at a time.
type Cache struct {
	store *offload.Store
	connection
	o     CacheOptions
	codes *quant8.Map // of 8 bits
}

func (o CacheOptions) check() error {
	float := o.DType == snug.F32 || o.DType == snug.F16 || o.DType == snug.BF16
	if o.Bits != 0 && o.Bits != 8 || o.Bits == 0 && !float {
		return fmt.Errorf("features in %v with %d Bits, want F32, F16 or BF16, or 8 Bits: %w", o.DType, o.Bits, snug.ErrConfig)
	}
	return nil
}

// cacheBlock is the elements of a scale.
const cacheBlock = 256

// NewCache returns a cache of what the encoder of the model computes. The error wraps [snug.ErrConfig].
func (in *Input) NewCache(store *offload.Store, o CacheOptions) (*Cache, error) {
	switch {
	case in == nil || in.connection.rows == nil:
		return nil, fmt.Errorf("vision: NewCache: %w", errNoInput)
	case store == nil:
		return nil, fmt.Errorf("vision: NewCache: the store is nil: %w", snug.ErrConfig)
	}
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("vision: NewCache: %w", err)
	}
	c := &Cache{store: store, connection: in.connection, o: o}
	if o.Bits == 8 {
		c.o.DType, c.codes = 0, quant8.LinearMap(true)
	}
	return c, nil
}

var errNoCache = fmt.Errorf("a Cache that NewCache did not make: %w", snug.ErrConfig)

// elements returns the elements of the features of an image.
func (c *connection) elements(l Layout) (int, error) {
	rows, err := c.rows(l)
	return rows * c.per * c.reads, err
}

// size returns the bytes of a page of some elements.
func (o CacheOptions) size(elements int) int {
	if o.Bits == 8 {
		return elements + 4*quant8.Blocks(elements, cacheBlock)
	}
	return elements * o.DType.Size()
}

// FeatureBytes returns the bytes of the page that a [Cache] with these options has of an image of a layout. The error wraps [snug.ErrConfig], or is that
// of [Input.Rows].
func (in *Input) FeatureBytes(l Layout, o CacheOptions) (int64, error) {
	if _, err := in.Rows(l); err != nil {
		return 0, err
	}
	if err := o.check(); err != nil {
		return 0, fmt.Errorf("vision: FeatureBytes: %w", err)
	}
	n, err := in.elements(l)
	return int64(o.size(n)), err
}

func (c *Cache) usable() error {
	if c == nil || c.store == nil {
		return errNoCache
	}
	return nil
}

// key names the page of an image.
func (c *Cache) key(image [sha256.Size]byte, l Layout) string {
	h := sha256.New()
	h.Write(c.o.About[:])
	h.Write(image[:])
	numbers := append([]int{int(c.o.DType), c.o.Bits, c.reads, c.per, l.Merge, l.Rows, l.Columns, l.Height, l.Width, l.Tokens}, l.Grid[:]...)
	if l.Frames > 0 {
		numbers = append(numbers, -l.Frames)
	}
	for _, n := range append(numbers, l.Shape...) {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
	return "features/" + hex.EncodeToString(h.Sum(nil)[:20])
}

// Has reports whether the cache has the features of an image, whose file has a sum.
func (c *Cache) Has(image [sha256.Size]byte, l Layout) bool {
	return c != nil && c.store != nil && c.store.Has(c.key(image, l))
}

// Put stores the features of an image, whose file has a sum. Errors are those of the store, and wrap [snug.ErrShape] for features that are not
// of the model, and [snug.ErrNonFinite] for those that 8 bits cannot have.
func (c *Cache) Put(image [sha256.Size]byte, f Features) (err error) {
	defer fault.Named(&err, "vision: Cache.Put")
	if err := c.usable(); err != nil {
		return err
	}
	n, err := c.elements(f.Layout)
	if err != nil {
		return err
	}
	if f.Values.Len() != n || n == 0 {
		return fmt.Errorf("%d elements, want %d: %w", f.Values.Len(), n, snug.ErrShape)
	}
	key := c.key(image, f.Layout)
	page, err := c.store.Acquire(key, c.o.size(n))
	if err != nil {
		return err
	}
	if c.codes != nil {
		scales, codes := parts(page, n)
		err = quant8.Quantize(codes, scales, f.Values, c.codes, cacheBlock)
	} else {
		err = amp.Cast(c.view(page), f.Values)
	}
	if err = cmp.Or(err, c.store.Release(key, true)); err != nil {
		_ = c.store.Delete(key) // the first error says more
	}
	return err
}

func (c *Cache) view(page []byte) snug.View {
	switch c.o.DType {
	case snug.F16:
		return snug.ViewOf(as[snug.Float16](page))
	case snug.BF16:
		return snug.ViewOf(as[snug.BFloat16](page))
	}
	return snug.ViewOf(as[float32](page))
}

// parts returns the scales and the codes of a page in 8 bits.
func parts(page []byte, n int) (scales []float32, codes []byte) {
	at := len(page) - n
	return as[float32](page[:at]), page[at:]
}

// as returns a page, which begins at a multiple of 64 bytes, as elements.
func as[T snug.Element](page []byte) []T {
	var x T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(page))), len(page)/int(unsafe.Sizeof(x)))
}

// Get returns the features of an image, whose file has a sum, in new memory. Errors are those of the store, and wrap [snug.ErrConfig] for an
// image that the cache does not have.
func (c *Cache) Get(image [sha256.Size]byte, l Layout) (f Features, err error) {
	defer fault.Named(&err, "vision: Cache.Get")
	if err := c.usable(); err != nil {
		return f, err
	}
	n, err := c.elements(l)
	if err != nil {
		return f, err
	}
	key := c.key(image, l)
	if !c.store.Has(key) {
		return f, fmt.Errorf("no features of the image: %w", snug.ErrConfig)
	}
	page, err := c.store.Acquire(key, c.o.size(n))
	if err != nil {
		return f, err
	}
	f.Layout = l
	dt := cmp.Or(c.o.DType, snug.F32)
	if f.Values, _, err = snug.MakeView(snug.CPU(), dt, n); err == nil && c.codes != nil {
		scales, codes := parts(page, n)
		err = quant8.Dequantize(f.Values, codes, scales, c.codes, cacheBlock)
	} else if err == nil {
		err = snug.Copy(f.Values, c.view(page))
	}
	return f, cmp.Or(err, c.store.Release(key, false))
}

// Commit makes the features that were put durable together: see [offload.Store.Commit].
func (c *Cache) Commit() error {
	if c == nil || c.store == nil {
		return fmt.Errorf("vision: Cache.Commit: %w", errNoCache)
	}
	return c.store.Commit()
}

// Fill computes the features of images that the cache lacks, one image at a time, and commits after every 256 MiB of new features in float32, and
// at the end. image is called for each number below images: it returns the sum of the image's file, its layout, and a function that reads its
// pixels, which is called if the features are missing. done, unless nil, is called after each image, also one that the cache has, and ends Fill by an error. An interrupted Fill loses what was computed since the last commit, and goes on from there when it is called again.
func (c *Cache) Fill(ctx context.Context, e *Encoder, images int, image func(i int) (sum [sha256.Size]byte, l Layout, pixels func() (Pixels, error)), done func(i int) error) (err error) {
	defer fault.Named(&err, "vision: Cache.Fill")
	switch {
	case c == nil || c.store == nil:
		return errNoCache
	case e == nil || e.images == nil:
		return errNoEncoder
	case image == nil:
		return fmt.Errorf("the function image is nil: %w", snug.ErrConfig)
	}
	fresh := 0
	for i := range images {
		sum, l, pixels := image(i)
		if !c.Has(sum, l) {
			if pixels == nil {
				return fmt.Errorf("the pixels of image %d are nil: %w", i, snug.ErrConfig)
			}
			x, err := pixels()
			if err != nil {
				return err
			}
			x.Layout = l
			list, err := e.Encode(ctx, []Pixels{x})
			if err == nil {
				err = c.Put(sum, list[0])
			}
			if err != nil {
				return err
			}
			if fresh += list[0].Values.Bytes(); fresh >= commitBytes {
				if err := c.store.Commit(); err != nil {
					return err
				}
				fresh = 0
			}
		}
		if done != nil {
			if err := done(i); err != nil {
				return err
			}
		}
	}
	return c.store.Commit()
}

// commitBytes are the bytes of features, in float32, between two commits of Fill.
const commitBytes = 256 << 20
