"""Rows that many blocks share: cluster and grid."""
