//! Curves through few points: a line, and the universal scalability law.

/// Smaller pivots mean that the points do not determine the curve.
const PIVOT_MIN: f64 = 1e-12;

/// y = intercept + slope · x.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Value at 0.
    pub intercept: f64,
    /// The growth of y per unit of x.
    pub slope: f64,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
}

impl Line {
    /// Fits a line to points (x, y) by least squares; `None` for fewer than two places x.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len() as f64;
        let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / n;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let sxx: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let sxy: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        if points.len() < 2 || sxx <= 0.0 {
            return None;
        }
        let slope = sxy / sxx;
        let intercept = y - slope * x;
        let model = |x: f64| intercept + slope * x;
        Some(Self { intercept, slope, r_squared: r_squared(points, model) })
    }
}

/// Returns the share of the variance of points (x, y) that a model explains.
fn r_squared(points: &[(f64, f64)], model: impl Fn(f64) -> f64) -> f64 {
    let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
    let all: f64 = points.iter().map(|point| (point.1 - mean).powi(2)).sum();
    let left: f64 = points.iter().map(|point| (point.1 - model(point.0)).powi(2)).sum();
    if all > 0.0 { 1.0 - left / all } else { 0.0 }
}

/// Gunther's universal scalability law, X(N) = λN / (1 + σ(N − 1) + κN(N − 1)): λ is the throughput of one, σ
/// the share that waits for others (contention), κ the cost of agreement (coherence).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usl {
    /// Throughput of one.
    pub lambda: f64,
    /// Contention, not negative.
    pub sigma: f64,
    /// Coherence, not negative.
    pub kappa: f64,
    /// Share of the variance that it explains.
    pub r_squared: f64,
}

impl Usl {
    /// Fits points (N, X) by least squares of relative errors of N/X, which the law makes linear in 1/λ, σ/λ
    /// and κ/λ; none of them may be negative.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        if points.len() < 3 || points.iter().any(|(n, x)| *n < 1.0 || *x <= 0.0) {
            return None;
        }
        // With few unknowns, every choice of those that are 0 can be tried.
        let choices =
            [[true, true, true], [true, true, false], [true, false, true], [true, false, false]];
        let fits = choices.iter().filter_map(|used| {
            let [a, b, c] = solve(points, *used)?;
            let is_sane = a > 0.0 && b >= 0.0 && c >= 0.0;
            let error = |(n, x): &(f64, f64)| {
                let y = n / x;
                (1.0 - (a + b * (n - 1.0) + c * n * (n - 1.0)) / y).powi(2)
            };
            is_sane.then(|| (points.iter().map(error).sum::<f64>(), [a, b, c]))
        });
        let (_, [a, b, c]) = fits.min_by(|one, other| one.0.total_cmp(&other.0))?;
        let mut law = Self { lambda: 1.0 / a, sigma: b / a, kappa: c / a, r_squared: 0.0 };
        law.r_squared = r_squared(points, |n| law.at(n));
        Some(law)
    }

    /// Returns the throughput of N.
    pub fn at(&self, n: f64) -> f64 {
        self.lambda * n / (1.0 + self.sigma * (n - 1.0) + self.kappa * n * (n - 1.0))
    }

    /// Returns the N of the highest throughput, √((1 − σ)/κ); `None` if it grows without end.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0 && self.sigma < 1.0).then(|| ((1.0 - self.sigma) / self.kappa).sqrt())
    }
}

/// Returns the weighted normal equations of y = N/X on the used terms among 1, N − 1 and N(N − 1).
fn solve(points: &[(f64, f64)], used: [bool; 3]) -> Option<[f64; 3]> {
    let mut matrix = [[0.0; 4]; 3];
    for (n, x) in points {
        let y = n / x;
        let mut row = [1.0 / y, (n - 1.0) / y, n * (n - 1.0) / y, 1.0];
        for (value, is_used) in row.iter_mut().zip(used) {
            *value *= f64::from(u8::from(is_used));
        }
        for (sums, left) in matrix.iter_mut().zip(row) {
            for (sum, right) in sums.iter_mut().zip(row) {
                *sum += left * right;
            }
        }
    }
    // Unused terms are 0.
    for (index, _) in used.iter().enumerate().filter(|(_, is_used)| !**is_used) {
        matrix[index][index] = 1.0;
    }
    eliminate(&mut matrix)
}

/// Gauss and Jordan with pivots; rows are scaled, for N(N − 1) is much larger than 1.
fn eliminate(matrix: &mut [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for row in matrix.iter_mut() {
        let largest = row[..3].iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        if largest <= 0.0 {
            return None;
        }
        for value in row {
            *value /= largest;
        }
    }
    for column in 0..3 {
        let pivot = (column..3)
            .max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        matrix.swap(column, pivot);
        let pivot = matrix[column];
        if pivot[column].abs() < PIVOT_MIN {
            return None;
        }
        for (index, row) in matrix.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            debug_assert!(index < 3);
            let factor = row[column] / pivot[column];
            for (value, of_pivot) in row.iter_mut().zip(pivot) {
                *value -= factor * of_pivot;
            }
        }
    }
    Some([0, 1, 2].map(|index| matrix[index][3] / matrix[index][index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, truth: f64) -> bool {
        (value - truth).abs() <= 1e-6 * truth.abs().max(1e-3)
    }

    /// Goal: exact points give back line and law, their peak and R² = 1.
    #[test]
    fn exact_points_give_the_truth() {
        let line = Line::fit(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)]).unwrap();
        assert!(near(line.slope, 2.0) && near(line.intercept, 3.0) && near(line.r_squared, 1.0));
        assert!(Line::fit(&[(1.0, 5.0), (1.0, 7.0)]).is_none());
        let truth = Usl { lambda: 1000.0, sigma: 0.05, kappa: 0.0005, r_squared: 1.0 };
        let points: Vec<(f64, f64)> =
            [1.0, 2.0, 8.0, 32.0, 64.0, 256.0].map(|n| (n, truth.at(n))).to_vec();
        let law = Usl::fit(&points).unwrap();
        assert!(
            near(law.lambda, 1000.0) && near(law.sigma, 0.05) && near(law.kappa, 0.0005),
            "{law:?}"
        );
        assert!(near(law.peak().unwrap(), (0.95_f64 / 0.0005).sqrt()), "{law:?}");
        // Without waits: no contention and no peak; a higher throughput is not negative contention.
        for power in [1.0, 1.05] {
            let free: Vec<(f64, f64)> =
                [1.0, 4.0, 16.0].map(|n: f64| (n, 10.0 * n.powf(power))).to_vec();
            let law = Usl::fit(&free).unwrap();
            assert!(
                law.sigma.abs() < 1e-9 && law.kappa.abs() < 1e-9 && law.peak().is_none(),
                "{law:?}"
            );
        }
        assert!(Usl::fit(&points[..2]).is_none());
    }

    /// Goal: on noisy points the fitted law stays close to the true one; a low R² shows that the points follow
    /// no such law.
    #[test]
    fn noise_is_told() {
        let truth = Usl { lambda: 100.0, sigma: 0.1, kappa: 0.001, r_squared: 1.0 };
        let mut random = crate::random::Random::new(3);
        let points: Vec<(f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
            .map(|n| (n, truth.at(n) * (0.02 * random.normal()).exp()))
            .to_vec();
        let law = Usl::fit(&points).unwrap();
        assert!((law.sigma - 0.1).abs() < 0.03 && law.r_squared > 0.95, "{law:?}");
        let wild: Vec<(f64, f64)> =
            points.iter().enumerate().map(|(i, (n, _))| (*n, [50.0, 300.0][i % 2])).collect();
        assert!(Usl::fit(&wild).is_none_or(|law| law.r_squared < 0.5));
    }
}
