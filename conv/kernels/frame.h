// What kernels of images share. Vectors have fewer than 2^32 elements, which package conv checks, so that offsets are u32.
#pragma once

// Place is an element of a vector of images.
struct Place {
    u32 plane; // the number of the image, and of the channel in it unless channels are last
    u32 z, y, x, channel;
};

// place_of returns that of element i of a vector with images of z×y×x positions.
DEVICE Place place_of(u32 i, u32 z, u32 y, u32 x, u32 channels, u32 last) {
    Place p = {0, 0, 0, 0, 0};
    if (last) {
        p.channel = i % channels;
        i /= channels;
    }
    p.x = i % x;
    i /= x;
    p.y = i % y;
    i /= y;
    p.z = i % z;
    p.plane = i / z;
    return p;
}

// position_of returns the index of a position among those of all images, whose size is sizeZ×sizeY×sizeX.
DEVICE u32 position_of(u32 plane, u32 z, u32 y, u32 x, u32 sizeZ, u32 sizeY, u32 sizeX) {
    return ((plane * sizeZ + z) * sizeY + y) * sizeX + x;
}

// enter sets an element to alpha·sum + beta·itself.
template <class T> DEVICE void enter(GLOBAL T* to, float sum, f32 alpha, f32 beta) {
    sum *= alpha;
    if (beta != 0.0f) sum += beta * widen(*to);
    *to = narrow<T>(sum);
}
