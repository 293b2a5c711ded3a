// The updates of one element by the rules of internal/optim, which describes them.
// Every product and sum is rounded by itself.
#pragma once
#include "elements.h"

// Rules have the numbers of package optim. Those with one state are MOMENTUM, NESTEROV,
// LION, RMSPROP, ADAGRAD, LARS, ADAFACTOR, MUON, and ADAFACTOR_MOMENTUM of a matrix; with
// two ADAM, LAMB, SCHEDULE_FREE and ADAFACTOR_MOMENTUM; with three ADEMAMIX.
enum { ADAM, ADEMAMIX, MOMENTUM, NESTEROV, LION, RMSPROP, ADAGRAD, LAMB, LARS, ADAFACTOR, ADAFACTOR_MOMENTUM, MUON, SCHEDULE_FREE };

// Factors is internal/optim's Coef.
struct Factors {
    u32 rule;
    f32 beta1, rest1, beta2, rest2, beta3, rest3, scale1, scale2, size, eps, root, grad_scale, l2, pre, post;
};

// States are those of one element.
template <int count> struct States { float x[count]; };

// gradient does not depend on p without coupled decay.
DEVICE float gradient(PRIVATE const Factors& c, float p, float g) {
    g = g * c.grad_scale;
    return c.l2 != 0 ? g + c.l2 * p : g;
}

DEVICE float lion(PRIVATE const Factors& c, float p, float g, PRIVATE float& m) {
    float d = c.beta1 * m + c.rest1 * g;
    float step = bits_float(float_bits(c.size) ^ (float_bits(d) & 0x80000000u));
    if (d == 0 || is_nan(d)) step = 0;
    m = c.beta2 * m + c.rest2 * g;
    return (p * c.pre - step) * c.post;
}

// divisor returns what the second moment divides by.
DEVICE float divisor(PRIVATE const Factors& c, float v) {
    float root = square_root(v);
    return c.rule == ADAFACTOR || c.rule == ADAFACTOR_MOMENTUM ? maximum(root, c.eps) : root + c.eps;
}

// squares is RMSPROP, ADAGRAD and ADAFACTOR. Only the last one's p decays here.
DEVICE float squares(PRIVATE const Factors& c, float p, float g, PRIVATE float& v) {
    float keep = c.rule == ADAGRAD ? 1.0f : c.rule == ADAFACTOR ? c.beta2 : c.beta1;
    float add = c.rule == ADAGRAD ? 1.0f : c.rule == ADAFACTOR ? c.rest2 : c.rest1;
    v = keep * v + add * g * g;
    return p * c.pre - c.size * (g / divisor(c, v));
}

// moments steps m and v.
DEVICE void moments(PRIVATE const Factors& c, float g, PRIVATE float& m, PRIVATE float& v) {
    m = c.beta1 * m + c.rest1 * g;
    v = c.beta2 * v + c.rest2 * g * g;
}

// direction steps the moments and returns u of LAMB.
DEVICE float direction(PRIVATE const Factors& c, float p, float g, PRIVATE States<2>& s) {
    moments(c, g * c.grad_scale, s.x[0], s.x[1]);
    float u = c.scale1 * s.x[0] / (square_root(s.x[1]) * c.root + c.eps);
    return c.scale2 != 0 ? u + c.scale2 * p : u;
}

// schedule_free steps m, which is z - y, and v, and returns y.
DEVICE float schedule_free(PRIVATE const Factors& c, float p, float g, PRIVATE States<2>& s) {
    g = g * c.grad_scale;
    s.x[1] = c.beta2 * s.x[1] + c.rest2 * g * g;
    float u = g / (square_root(s.x[1]) * c.root + c.eps), m = s.x[0];
    if (c.scale2 != 0) u = u + c.scale2 * p;
    s.x[0] = c.beta1 * m - c.rest1 * u;
    return p + c.scale1 * m - c.size * u;
}

// follow steps m of ADAFACTOR_MOMENTUM by u.
DEVICE float follow(PRIVATE const Factors& c, float p, float u, PRIVATE float& m) {
    m = c.beta1 * m + c.rest1 * (c.size * u);
    return p * c.pre - m;
}

// update steps one element and returns the new parameter. MUON's is what is to be
// orthogonal.
DEVICE float update(PRIVATE const Factors& c, float p, float g, PRIVATE States<1>& s) {
    PRIVATE float& m = s.x[0];
    if (c.rule == ADAFACTOR_MOMENTUM) return follow(c, p, g, m);
    g = gradient(c, p, g);
    if (c.rule == LION) return lion(c, p, g, m);
    if (c.rule == RMSPROP || c.rule == ADAGRAD || c.rule == ADAFACTOR) return squares(c, p, g, m);
    if (c.rule == LARS) {
        m = c.beta1 * m + c.size * g;
        return p - m;
    }
    m = c.beta1 * m + c.rest1 * g;
    float look = c.scale1 * m + c.scale2 * g;
    return c.rule == MUON ? look : p - c.size * look;
}

DEVICE float update(PRIVATE const Factors& c, float p, float g, PRIVATE States<2>& s) {
    if (c.rule == LAMB) return p - c.size * direction(c, p, g, s);
    if (c.rule == SCHEDULE_FREE) return schedule_free(c, p, g, s);
    g = gradient(c, p, g);
    float m = s.x[0];
    moments(c, g, m, s.x[1]);
    bool factor = c.rule == ADAFACTOR_MOMENTUM; // whose m comes after the quotient
    float u = (factor ? g : m) / divisor(c, s.x[1]);
    if (factor) return follow(c, p, u, s.x[0]);
    s.x[0] = m;
    return (p * c.pre - c.size * u) * c.post;
}

DEVICE float update(PRIVATE const Factors& c, float p, float g, PRIVATE States<3>& s) {
    g = gradient(c, p, g);
    moments(c, g, s.x[0], s.x[2]);
    s.x[1] = c.beta3 * s.x[1] + c.rest3 * g;
    float mixed = c.scale1 * s.x[0] + c.scale2 * s.x[1];
    return (p * c.pre - c.size * (mixed / (square_root(s.x[2]) * c.root + c.eps))) * c.post;
}
