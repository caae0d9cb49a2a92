"""A slow reference for PatchUp, written with plain loops from the paper's equations and its Algorithm 1.

Nothing of timm_patchup is imported. Features are flat lists of numbers, one per sample; ``holes`` is the
algorithm's ``1 - M``, True where features are altered. If the paper leaves a choice, the docstring states which one is
taken: even block sizes, blocks larger than the map, and the rounding of the CutMix rectangle follow timm.
"""

from math import exp, log, sqrt

Grid = list[list[bool]]
Vector = list[float]


def gamma_adj(gamma: float, block_size: int, height: int, width: int) -> float:
    """Eq. 2: gamma * (feature map's area) / ((block's area) * (valid region to build a block))."""
    block_height = block_size if block_size < height else height
    block_width = block_size if block_size < width else width
    map_area = height * width
    block_area = block_height * block_width
    valid_region = (height - block_height + 1) * (width - block_width + 1)
    return gamma * map_area / (block_area * valid_region)


def span(middle: int, length: int, size: int) -> range:
    """Positions that a block of ``length`` around ``middle`` covers; an even one has one more before than after."""
    block = length if length < size else size
    start = middle - block // 2
    return range(max(start, 0), min(start + block, size))


def grow(seeds: Grid, block_size: int) -> Grid:
    """Binary mask creation: where a seed is 1, the square around it is altered."""
    height, width = len(seeds), len(seeds[0])
    holes = [[False] * width for _ in range(height)]
    for i in range(height):
        for j in range(width):
            if seeds[i][j]:
                for row in span(i, block_size, height):
                    for column in span(j, block_size, width):
                        holes[row][column] = True
    return holes


def is_made_of_blocks(holes: Grid, block_size: int) -> bool:
    """Whether some seeds grow to exactly this mask: take every seed whose block is inside it."""
    height, width = len(holes), len(holes[0])
    seeds = [[False] * width for _ in range(height)]
    for i in range(height):
        for j in range(width):
            rows, columns = span(i, block_size, height), span(j, block_size, width)
            seeds[i][j] = all(holes[row][column] for row in rows for column in columns)
    return grow(seeds, block_size) == holes


def cutmix_rectangle(height: int, width: int, lam: float, row: int, column: int) -> Grid:
    """The single patch of the input space: sqrt(1 - lam) of each side, rounded down, clipped at the border."""
    cut_height = int(height * sqrt(1.0 - lam))
    cut_width = int(width * sqrt(1.0 - lam))
    holes = [[False] * width for _ in range(height)]
    for i in range(row - cut_height // 2, row - cut_height // 2 + cut_height):
        for j in range(column - cut_width // 2, column - cut_width // 2 + cut_width):
            if 0 <= i < height and 0 <= j < width:
                holes[i][j] = True
    return holes


def portion_unchanged(holes: list[bool]) -> float:
    """p_u: the fraction of features that are not altered."""
    unchanged = 0
    for hole in holes:
        if not hole:
            unchanged += 1
    return unchanged / len(holes)


def mix(weight: float, a: Vector, b: Vector) -> Vector:
    """Eq. 4: Mix_weight(a, b) = weight * a + (1 - weight) * b."""
    return [weight * a_n + (1.0 - weight) * b_n for a_n, b_n in zip(a, b)]


def phi_hard(own: Vector, other: Vector, holes: list[bool]) -> Vector:
    """Eq. 3: M * g(x_i) + (1 - M) * g(x_j)."""
    result = []
    for own_n, other_n, hole in zip(own, other, holes):
        m = 0 if hole else 1
        result.append(m * own_n + (1 - m) * other_n)
    return result


def phi_soft(own: Vector, other: Vector, holes: list[bool], lam: float) -> Vector:
    """Eq. 5: M * g(x_i) + Mix_lam((1 - M) * g(x_i), (1 - M) * g(x_j))."""
    result = []
    for own_n, other_n, hole in zip(own, other, holes):
        m = 0 if hole else 1
        result.append(m * own_n + (lam * ((1 - m) * own_n) + (1.0 - lam) * ((1 - m) * other_n)))
    return result


def operation(features: list[Vector], partner: list[int], holes: list[list[bool]], lam: float | None) -> list[Vector]:
    """The operation on a batch: hard if ``lam`` is None; one mask for the batch, or one per sample."""
    result = []
    for i, j in enumerate(partner):
        mask = holes[0] if len(holes) == 1 else holes[i]
        if lam is None:
            result.append(phi_hard(features[i], features[j], mask))
        else:
            result.append(phi_soft(features[i], features[j], mask, lam))
    return result


def target_of_changed(y_i: Vector, y_j: Vector, lam: float | None) -> Vector:
    """Y: y_j for hard, Mix_lam(y_i, y_j) for soft."""
    return list(y_j) if lam is None else mix(lam, y_i, y_j)


def reweighted_target(y_i: Vector, y_j: Vector, p_u: float, lam: float | None) -> Vector:
    """W, eq. 7 and 8: Mix_p_u(y_i, y_j) for hard, Mix_p_u(y_i, Mix_lam(y_i, y_j)) for soft."""
    return mix(p_u, y_i, y_j) if lam is None else mix(p_u, y_i, mix(lam, y_i, y_j))


def first_term(p_u: float, loss_of_own: float, loss_of_changed: float) -> float:
    """L1 of eq. 6: Mix_p_u[l(out, y_i), l(out, Y)]."""
    return p_u * loss_of_own + (1.0 - p_u) * loss_of_changed


def objective(p_u: float, loss_of_own: float, loss_of_changed: float, loss_of_reweighted: float) -> float:
    """L of eq. 6: L1 plus l(out, W)."""
    return first_term(p_u, loss_of_own, loss_of_changed) + loss_of_reweighted


def softmax(logits: Vector) -> Vector:
    top = max(logits)
    total = sum(exp(z - top) for z in logits)
    return [exp(z - top) / total for z in logits]


def smoothed(target: Vector, smoothing: float) -> Vector:
    """Label smoothing: (1 - s) * y + s / K."""
    return [(1.0 - smoothing) * t + smoothing / len(target) for t in target]


def cross_entropy(logits: Vector, target: Vector) -> float:
    return -sum(t * log(p) for t, p in zip(target, softmax(logits)))


def binary_cross_entropy(logits: Vector, target: Vector) -> float:
    """Mean over classes of the binary cross-entropy of a sigmoid."""
    total = 0.0
    for z, t in zip(logits, target):
        p = 1.0 / (1.0 + exp(-z))
        total -= t * log(p) + (1.0 - t) * log(1.0 - p)
    return total / len(logits)


def squared_error(logits: Vector, target: Vector) -> float:
    """Squared distance of the softmax from the target: not affine in the target."""
    return sum((p - t) ** 2 for p, t in zip(softmax(logits), target))
