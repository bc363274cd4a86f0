"""Fewer triangles for small images: a robot's meshes have far more than such an image has pixels."""

import mujoco
import numpy as np


def coarsen(model: mujoco.MjModel, size: int) -> None:
    """Merge vertices of a mesh that are within two pixels where the mesh fills an image of `size` pixels.

    Faces without an area are dropped; normals and texture coordinates stay with the corners of the
    rest. The model is changed for drawing alone: what physics reads of it is of the old meshes.
    """
    for mesh in range(model.nmesh):
        start = model.mesh_vertadr[mesh]
        vertices = model.mesh_vert[start : start + model.mesh_vertnum[mesh]]
        low = vertices.min(0)
        cell = 2 * np.linalg.norm(vertices.max(0) - low) / size
        cells = ((vertices - low) / cell).astype(np.int64) @ (1, size + 2, (size + 2) ** 2)
        _, merged, count = np.unique(cells, return_inverse=True, return_counts=True)
        means = np.stack([np.bincount(merged, axis) for axis in vertices.T], axis=1) / count[:, None]
        vertices[:] = means[merged]

        start = model.mesh_faceadr[mesh]
        faces = slice(start, start + model.mesh_facenum[mesh])
        a, b, c = merged[model.mesh_face[faces]].T
        kept = np.flatnonzero((a != b) & (b != c) & (c != a))
        for corners in (model.mesh_face, model.mesh_facenormal, model.mesh_facetexcoord):
            corners[start : start + len(kept)] = corners[faces][kept]
        model.mesh_facenum[mesh] = len(kept)
