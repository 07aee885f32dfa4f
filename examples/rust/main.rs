//! Attention from Rust: causal attention with ALiBi's slopes as a captured tensor, checked against plain loops.
//!
//!     rustc -O main.rs $(pkg-config --libs-only-L flashlift) && ./main
mod flashlift;

use flashlift::{Attention, Tensor};

const HEADS: usize = 8;
const LENGTH: usize = 256;
const DEPTH: usize = 64;

const PROBLEM: &str = "attn h8 s256 d64 f32 causal \
    score_mod(slopes: f32[8]) { \
      %0 = load slopes[h]; %1 = sub kv, q; %2 = to_f32 %1; %3 = mul %0, %2; %4 = add score, %3; \
      return %4 }";

/// Numbers between -1 and 1 that look random.
fn numbers() -> impl FnMut() -> f32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// One row of the result, by plain loops.
fn expected_row(q: &Tensor, k: &Tensor, v: &Tensor, slope: f32, head: usize, row: usize) -> Vec<f64> {
    let line = |tensor: &Tensor, position: usize| -> Vec<f64> {
        let begin = (head * LENGTH + position) * DEPTH;
        tensor.values[begin..begin + DEPTH].iter().map(|&x| f64::from(x)).collect()
    };
    let query = line(q, row);
    let (mut result, mut sum) = (vec![0.0; DEPTH], 0.0);
    for position in 0..=row {
        let score: f64 = query.iter().zip(line(k, position)).map(|(a, b)| a * b).sum();
        let distance = position as f64 - row as f64;
        let weight = (score / (DEPTH as f64).sqrt() + f64::from(slope) * distance).exp();
        sum += weight;
        for (total, value) in result.iter_mut().zip(line(v, position)) {
            *total += weight * value;
        }
    }
    result.iter().map(|total| total / sum).collect()
}

fn run() -> Result<(), String> {
    let attention = Attention::compile(PROBLEM)?;
    let shape = [1, HEADS as i64, LENGTH as i64, DEPTH as i64];
    let mut random = numbers();
    let q = Tensor::new(&shape, &mut random);
    let k = Tensor::new(&shape, &mut random);
    let v = Tensor::new(&shape, &mut random);
    let mut slope = 1.0;
    let slopes = Tensor::new(&[HEADS as i64], || {
        slope /= 2.0;
        slope
    });
    let mut out = Tensor::new(&shape, || 0.0);
    attention.run(&q, &k, &v, &[&slopes], &mut out)?;

    let mut largest: f64 = 0.0;
    for head in 0..HEADS {
        let row = (head * 31 + 5) % LENGTH;
        let want = expected_row(&q, &k, &v, slopes.values[head], head, row);
        let got = &out.values[(head * LENGTH + row) * DEPTH..];
        for (&got, want) in got.iter().zip(want) {
            let error = (f64::from(got) - want).abs();
            if error.is_nan() {
                return Err("the result holds NaN".to_string());
            }
            largest = largest.max(error);
        }
    }
    if largest >= 1e-4 {
        return Err(format!("the largest error is {largest}"));
    }
    println!("{}: largest error {largest:.1e}", attention.implementation());
    match Attention::compile("attn h8 s256 d64 casual") {
        Ok(_) => Err("a misspelt problem was compiled".to_string()),
        Err(_) => Ok(()),
    }
}

fn main() {
    if let Err(message) = run() {
        eprintln!("error: {message}");
        std::process::exit(1);
    }
}
